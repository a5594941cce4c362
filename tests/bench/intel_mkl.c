/* MKL takes other kernels, with other buffers, on Intel's processors than on AMD's. Loaded with LD_PRELOAD, this
   makes it take Intel's here too, so that one machine can stand for both. */
int mkl_serv_intel_cpu(void) { return 1; }
int mkl_serv_intel_cpu_true(void) { return 1; }
