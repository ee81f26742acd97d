/* The beginning of a packed program, as UPX and its like make it: a static program that unpacks another one, which lies behind
 * it in its file (each byte inverted, then the length in 8 bytes), maps that by itself, and jumps into it. If the packed program
 * asks for a dynamic loader, that is mapped too, and begins.
 *
 * cc -static -nostdlib -fno-stack-protector -fcf-protection=none -O1 -Wl,-Ttext-segment=0x7e000000 */
#include <elf.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>

static long call(long number, long a, long b, long c, long d, long e, long f) {
    register long r10 asm("r10") = d, r8 asm("r8") = e, r9 asm("r9") = f;
    long result;
    asm volatile("syscall"
                 : "=a"(result)
                 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                 : "rcx", "r11", "memory");
    return result;
}

/* Ends the process if a call has failed. */
static long need(long result) {
    if (result < 0 && result > -4096) call(SYS_exit_group, 99, 0, 0, 0, 0, 0);
    return result;
}

static char *memory(uintptr_t at, size_t len) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED_NOREPLACE : 0);
    return (char *)need(call(SYS_mmap, (long)at, (long)len, PROT_READ | PROT_WRITE, flags, -1, 0));
}

static char *read_at(int fd, size_t from, size_t len) {
    char *bytes = memory(0, len);
    for (size_t done = 0; done < len;)
        done += (size_t)need(call(SYS_pread64, fd, (long)(bytes + done), (long)(len - done), (long)(from + done), 0, 0));
    return bytes;
}

static char *unpack(void) {
    int fd = (int)need(call(SYS_open, (long)"/proc/self/exe", O_RDONLY, 0, 0, 0, 0));
    size_t end = (size_t)need(call(SYS_lseek, fd, 0, 2, 0, 0, 0)) - 8;
    size_t len = *(uint64_t *)read_at(fd, end, 8);
    char *bytes = read_at(fd, end - len, len);
    call(SYS_close, fd, 0, 0, 0, 0, 0);
    for (size_t i = 0; i < len; i++) bytes[i] = (char)~bytes[i];
    return bytes;
}

static char *loader(const char *path) {
    int fd = (int)need(call(SYS_open, (long)path, O_RDONLY, 0, 0, 0, 0));
    size_t len = (size_t)need(call(SYS_lseek, fd, 0, 2, 0, 0, 0));
    char *bytes = read_at(fd, 0, len);
    call(SYS_close, fd, 0, 0, 0, 0, 0);
    return bytes;
}

static uintptr_t down(uintptr_t at) { return at & ~(uintptr_t)4095; }

/* Maps a file's segments; returns what is added to its addresses. */
static uintptr_t map(const char *file) {
    const Elf64_Ehdr *elf = (const Elf64_Ehdr *)file;
    const Elf64_Phdr *headers = (const Elf64_Phdr *)(file + elf->e_phoff);
    uintptr_t base = 0, end = 0;
    for (int i = 0; i < elf->e_phnum; i++)
        if (headers[i].p_type == PT_LOAD) end = headers[i].p_vaddr + headers[i].p_memsz;
    if (elf->e_type == ET_DYN) {
        base = (uintptr_t)memory(0, end);
        call(SYS_munmap, (long)base, (long)end, 0, 0, 0, 0);
    }
    for (int i = 0; i < elf->e_phnum; i++) {
        const Elf64_Phdr *h = headers + i;
        if (h->p_type != PT_LOAD) continue;
        uintptr_t from = down(base + h->p_vaddr);
        size_t len = base + h->p_vaddr + h->p_memsz - from;
        char *to = memory(from, len) + (base + h->p_vaddr - from);
        for (size_t n = 0; n < h->p_filesz; n++) ((volatile char *)to)[n] = file[h->p_offset + n];
        int rights = (h->p_flags & PF_R ? PROT_READ : 0) | (h->p_flags & PF_W ? PROT_WRITE : 0) |
                     (h->p_flags & PF_X ? PROT_EXEC : 0);
        need(call(SYS_mprotect, (long)from, (long)len, rights, 0, 0, 0));
    }
    return base;
}

/* Tells the program what the kernel would have told it. */
static void tell(Elf64_auxv_t *vector, uint64_t what, uint64_t value) {
    for (; vector->a_type != AT_NULL; vector++)
        if (vector->a_type == what) vector->a_un.a_val = value;
}

/* Returns where to begin. */
uintptr_t begin(uintptr_t *stack) {
    char **environment = (char **)(stack + stack[0] + 2);
    while (*environment) environment++;
    Elf64_auxv_t *vector = (Elf64_auxv_t *)(environment + 1);
    char *file = unpack();
    const Elf64_Ehdr *elf = (const Elf64_Ehdr *)file;
    const Elf64_Phdr *headers = (const Elf64_Phdr *)(file + elf->e_phoff);
    uintptr_t base = map(file), entry = base + elf->e_entry;
    tell(vector, AT_ENTRY, entry);
    tell(vector, AT_PHNUM, elf->e_phnum);
    for (int i = 0; i < elf->e_phnum; i++) {
        const Elf64_Phdr *h = headers + i;
        if (h->p_type == PT_LOAD && h->p_offset == 0) tell(vector, AT_PHDR, base + h->p_vaddr + elf->e_phoff);
        if (h->p_type != PT_INTERP) continue;
        char *other = loader(file + h->p_offset);
        uintptr_t at = map(other);
        tell(vector, AT_BASE, at);
        entry = at + ((const Elf64_Ehdr *)other)->e_entry;
    }
    return entry;
}

asm(".globl _start\n"
    "_start:\n"
    "mov %rsp, %rbx\n"
    "mov %rsp, %rdi\n"
    "and $-16, %rsp\n"
    "call begin\n"
    "mov %rbx, %rsp\n"
    "xor %edx, %edx\n"
    "xor %ebx, %ebx\n"
    "xor %ebp, %ebp\n"
    "jmp *%rax\n");
