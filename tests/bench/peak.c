/* A malloc that counts: what is in use now, and the most so far. Loaded with LD_PRELOAD, before glibc's own,
   which it calls. Each block counts with its header, as mallinfo2 has it. */
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stddef.h>

void *__libc_malloc(size_t);
void __libc_free(void *);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);

static atomic_llong now, most;

static long long weight(void *block) { return (long long)malloc_usable_size(block) + 8; }

static void *grown(void *block) {
    if (block) {
        long long size = weight(block), used = atomic_fetch_add(&now, size) + size, seen = atomic_load(&most);
        while (used > seen && !atomic_compare_exchange_weak(&most, &seen, used)) {
        }
    }
    return block;
}

static void shrunk(void *block) {
    if (block) atomic_fetch_sub(&now, weight(block));
}

void *malloc(size_t size) { return grown(__libc_malloc(size)); }
void *calloc(size_t count, size_t size) { return grown(__libc_calloc(count, size)); }
void *memalign(size_t alignment, size_t size) { return grown(__libc_memalign(alignment, size)); }
void *aligned_alloc(size_t alignment, size_t size) { return grown(__libc_memalign(alignment, size)); }

void *realloc(void *block, size_t size) {
    long long before = block ? weight(block) : 0;
    void *moved = __libc_realloc(block, size);
    if (moved || !size) atomic_fetch_sub(&now, before);
    return grown(moved);
}

int posix_memalign(void **block, size_t alignment, size_t size) {
    void *made = grown(__libc_memalign(alignment, size));
    if (!made) return ENOMEM;
    *block = made;
    return 0;
}

void free(void *block) {
    shrunk(block);
    __libc_free(block);
}

long long stepscope_in_use(void) { return atomic_load(&now); }
long long stepscope_peak(void) { return atomic_load(&most); }
void stepscope_restart(void) { atomic_store(&most, atomic_load(&now)); }
