/* The library loads itself, in a program that has neither a loader nor libc (mod.rs): it applies its own relocations, and
 * stands in for the names that it takes from libc.
 *
 * This is C because nothing here may need what it prepares: until the relocations are applied, a static with a pointer in it
 * is wrong, and there is no memcpy, which a Rust compiler may call anywhere.
 *
 * Source of the layouts: elf(5); the System V ABI's supplement for amd64; for thread-local variables "ELF Handling For
 * Thread-Local Storage", variant II. */
#include <elf.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#define HIDDEN __attribute__((visibility("hidden")))
#define PAGE 4096ul

int *memlane_errno(void); /* shim.c */

/* The environment of the program. Written once, before the program begins. */
HIDDEN char **memlane_alone_environ;
static void *no_stream;

static long call(long number, long a, long b, long c)
{
    long answer;
    __asm__ volatile("syscall" : "=a"(answer) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return answer;
}

/* --- what stands in for libc ------------------------------------------- */

static void *move(void *to, const void *from, size_t len)
{
    void *result = to;
    if ((uintptr_t)to - (uintptr_t)from >= len) {
        __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(len) : : "memory");
        return result;
    }
    to = (char *)to + len - 1;
    from = (const char *)from + len - 1;
    __asm__ volatile("std; rep movsb; cld" : "+D"(to), "+S"(from), "+c"(len) : : "memory", "cc");
    return result;
}

static void *set(void *to, int byte, size_t len)
{
    void *result = to;
    __asm__ volatile("rep stosb" : "+D"(to), "+c"(len) : "a"(byte) : "memory");
    return result;
}

static int compare(const void *one, const void *other, size_t len)
{
    const volatile unsigned char *a = one, *b = other;
    for (size_t i = 0; i < len; i++)
        if (a[i] != b[i])
            return a[i] - b[i];
    return 0;
}

static size_t length(const char *text)
{
    const volatile char *end = text;
    while (*end)
        end++;
    return (size_t)(end - text);
}

static char *get_environment(const char *name)
{
    size_t len = length(name);
    for (char **entry = memlane_alone_environ; entry && *entry; entry++)
        if (length(*entry) > len && (*entry)[len] == '=' && !compare(*entry, name, len))
            return *entry + len + 1;
    return NULL;
}

static void give_up(void)
{
    call(SYS_tkill, call(SYS_gettid, 0, 0, 0), 6 /* SIGABRT */, 0);
    for (;;)
        call(SYS_exit_group, 134, 0, 0);
}

/* For functions whose answer 0 means that there is nothing. */
static long nothing(void) { return 0; }

/* Streams and the loader's functions are not called in such a program; names that are weak in the library may be missing. */
static void *stand_in(const char *name)
{
    static const struct {
        char name[24];
        void *is;
    } names[] = {
        {"memcpy", move},
        {"memmove", move},
        {"memset", set},
        {"memcmp", compare},
        {"bcmp", compare},
        {"strlen", length},
        {"getenv", get_environment},
        {"environ", &memlane_alone_environ},
        {"stdin", &no_stream},
        {"abort", give_up},
        {"__errno_location", memlane_errno},
        {"dl_iterate_phdr", nothing},
        {"fopencookie", nothing},
        {"fflush", nothing},
        {"free", nothing},
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (!compare(names[i].name, name, length(names[i].name) + 1))
            return names[i].is;
    return NULL;
}

/* --- relocations ------------------------------------------------------- */

static size_t value_of(const Elf64_Dyn *entry, Elf64_Sxword tag)
{
    for (; entry->d_tag != DT_NULL; entry++)
        if (entry->d_tag == tag)
            return entry->d_un.d_val;
    return 0;
}

static void put(uintptr_t place, uintptr_t value) { *(volatile uintptr_t *)place = value; }

static void relocate_itself(uintptr_t base, const Elf64_Rela *r, size_t len)
{
    for (const Elf64_Rela *end = r + len / sizeof *r; r < end; r++)
        if (ELF64_R_TYPE(r->r_info) == R_X86_64_RELATIVE)
            put(base + r->r_offset, base + (uintptr_t)r->r_addend);
}

static void relocate_symbols(uintptr_t base, const Elf64_Dyn *dynamic, const Elf64_Rela *r, size_t len, size_t below_fs)
{
    const Elf64_Sym *symbols = (const void *)(base + value_of(dynamic, DT_SYMTAB));
    const char *strings = (const void *)(base + value_of(dynamic, DT_STRTAB));
    for (const Elf64_Rela *end = r + len / sizeof *r; r < end; r++) {
        const Elf64_Sym *symbol = symbols + ELF64_R_SYM(r->r_info);
        uintptr_t target = base + symbol->st_value;
        if (symbol->st_shndx == SHN_UNDEF)
            target = (uintptr_t)stand_in(strings + symbol->st_name);
        switch (ELF64_R_TYPE(r->r_info)) {
        case R_X86_64_64:
            put(base + r->r_offset, target + (uintptr_t)r->r_addend);
            break;
        case R_X86_64_GLOB_DAT:
        case R_X86_64_JUMP_SLOT:
            put(base + r->r_offset, target);
            break;
        case R_X86_64_TPOFF64:
            put(base + r->r_offset, symbol->st_value + (uintptr_t)r->r_addend - below_fs);
            break;
        }
    }
}

/* Applies all relocations of the library that is mapped at `base`, and takes the right to write from what only they write to.
 * Its thread-local variables will begin `below_fs` bytes below the address in FS. All of them are zero at first: there is no
 * other kind (tidy looks). */
HIDDEN void memlane_load(uintptr_t base, const Elf64_Dyn *dynamic, size_t below_fs)
{
    const Elf64_Rela *data = (const void *)(base + value_of(dynamic, DT_RELA));
    const Elf64_Rela *calls = (const void *)(base + value_of(dynamic, DT_JMPREL));
    size_t data_len = value_of(dynamic, DT_RELASZ), calls_len = value_of(dynamic, DT_PLTRELSZ);
    relocate_itself(base, data, data_len);
    relocate_itself(base, calls, calls_len);
    relocate_symbols(base, dynamic, data, data_len, below_fs);
    relocate_symbols(base, dynamic, calls, calls_len, below_fs);

    const Elf64_Ehdr *header = (const void *)base;
    const Elf64_Phdr *segment = (const void *)(base + header->e_phoff);
    for (const Elf64_Phdr *end = segment + header->e_phnum; segment < end; segment++)
        if (segment->p_type == PT_GNU_RELRO) {
            uintptr_t from = (base + segment->p_vaddr) & -PAGE;
            uintptr_t to = (base + segment->p_vaddr + segment->p_memsz) & -PAGE;
            call(SYS_mprotect, (long)from, (long)(to - from), PROT_READ);
        }
}
