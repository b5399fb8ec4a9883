// For libraries of wheels: the first version of `log`, which every glibc has, in place of the one of glibc 2.29.
#ifdef __x86_64__
__asm__(".symver log, log@GLIBC_2.2.5");
#elif defined(__aarch64__)
__asm__(".symver log, log@GLIBC_2.17");
#endif
