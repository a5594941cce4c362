/* Faults on request, below the real SQLite and the real clock. Loaded with LD_PRELOAD, before glibc.

   - Calls that write, sync or resize a file whose name contains "log.sqlite3" are counted; from the first-th on,
     `failing` of them fail with the given errno.
   - The wall clock is shifted by any number of seconds: what is read, and the times that utimes "now" writes. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static atomic_long calls, failed, first, failing, shift_s;
static atomic_int error_number;

void stepscope_fail_writes(long from, long count, int error) {
    atomic_store(&calls, 0);
    atomic_store(&failed, 0);
    atomic_store(&failing, count);
    atomic_store(&error_number, error);
    atomic_store(&first, from);
}
long stepscope_write_calls(void) { return atomic_load(&calls); }
long stepscope_failed_calls(void) { return atomic_load(&failed); }
void stepscope_shift_clock(long seconds) { atomic_store(&shift_s, seconds); }

static int is_of_log(int descriptor) {
    char link[32], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0) return 0;
    path[length] = 0;
    return strstr(path, "log.sqlite3") != NULL;
}

static int fails(int descriptor) {
    long from = atomic_load(&first);
    if (!from || !is_of_log(descriptor)) return 0;
    long call = atomic_fetch_add(&calls, 1) + 1;
    if (call < from || call >= from + atomic_load(&failing)) return 0;
    atomic_fetch_add(&failed, 1);
    errno = atomic_load(&error_number);
    return 1;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define FAILING(type, name, parameters, arguments)         \
    type name parameters {                                 \
        static __typeof__(&name) real;                     \
        if (!real) real = REAL(name);                      \
        return fails(descriptor) ? (type)-1 : real arguments; \
    }

FAILING(ssize_t, write, (int descriptor, const void *data, size_t size), (descriptor, data, size))
FAILING(ssize_t, pwrite, (int descriptor, const void *data, size_t size, off_t at), (descriptor, data, size, at))
FAILING(ssize_t, pwrite64, (int descriptor, const void *data, size_t size, off64_t at), (descriptor, data, size, at))
FAILING(int, fdatasync, (int descriptor), (descriptor))
FAILING(int, fsync, (int descriptor), (descriptor))
FAILING(int, ftruncate, (int descriptor, off_t size), (descriptor, size))
FAILING(int, ftruncate64, (int descriptor, off64_t size), (descriptor, size))

static int is_wall(clockid_t clock) { return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE; }

int clock_gettime(clockid_t clock, struct timespec *now) {
    static __typeof__(&clock_gettime) real;
    if (!real) real = REAL(clock_gettime);
    int code = real(clock, now);
    if (!code && is_wall(clock)) now->tv_sec += atomic_load(&shift_s);
    return code;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone) {
    (void)zone;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    out->tv_sec = now.tv_sec;
    out->tv_usec = now.tv_nsec / 1000;
    return 0;
}

static const struct timespec *shifted(const struct timespec times[2], struct timespec now[2]) {
    if (times || !atomic_load(&shift_s)) return times;
    clock_gettime(CLOCK_REALTIME, &now[0]);
    now[1] = now[0];
    return now;
}

int futimens(int descriptor, const struct timespec times[2]) {
    static __typeof__(&futimens) real;
    if (!real) real = REAL(futimens);
    struct timespec now[2];
    return real(descriptor, shifted(times, now));
}

int utimensat(int folder, const char *path, const struct timespec times[2], int flags) {
    static __typeof__(&utimensat) real;
    if (!real) real = REAL(utimensat);
    struct timespec now[2];
    return real(folder, path, shifted(times, now), flags);
}
