#!/usr/bin/env bash
# Makes the libraries that programs are linked with from cargo's output: libcairn.so, another name
# of the preload library, and libcairn.a, for statically linked programs.
#
#   scripts/linked-libraries.sh DIRECTORY      DIRECTORY: target/release or target/debug, which gets the libraries
#
# libcairn.a consists of
#   cairn.o     all Rust code. The hook of NAME is __cairn_hook_NAME. Only the hooks and the functions of cairn.h
#               are visible, so that another Rust library in the same program cannot conflict.
#   wrap.o      __wrap_NAME for each hook, which jumps to the hook, and the list of the C library's own functions
#               (__real_NAME) that src/next.rs reads.
#   NAME.o      the same for one hook, linked only into programs that call NAME: functions that this machine's
#               C library does not have, or for which the linker prints a warning.
# The hooks are listed in crates/cairn-preload/wrapped.txt, which a test compares with the library.
#
# Must stay true: nothing outside DIRECTORY is written; each file is replaced whole or not at all.
set -euo pipefail
shopt -s inherit_errexit

readonly repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
readonly directory=${1:?the directory of libcairn_preload.a}
readonly built=$directory/libcairn_preload.a
readonly hooks=$repository/crates/cairn-preload/wrapped.txt
# These look up users' home directories, for which the linker warns in static programs.
readonly warned='glob glob64'

scratch=$(mktemp -d "$directory/linked-libraries.XXXXXX")
readonly scratch
api=$(sed -n 's/^.*[ *]\(cairn_[a-z_]*\)(.*;$/\1/p' "$repository/include/cairn.h")
readonly api
trap 'rm -rf "$scratch"' EXIT

# Prints the names of the C library's functions for static linking, without those the linker warns
# of.
plain_functions() {
    local library
    library=$(cc -print-file-name=libc.a)
    if [ -f "$library" ]; then
        nm --defined-only --extern-only "$library" 2>/dev/null | awk 'NF == 3 { print $3 }' | sort -u >"$scratch/functions"
        readelf --section-headers --wide "$library" | grep -o '\.gnu\.warning\.[^ ]*' | sed 's/.*\.//' >"$scratch/warned"
    else
        library=$(cc -print-file-name=libc.so.6)
        nm --dynamic --defined-only "$library" | awk '{ sub("@.*", "", $3); print $3 }' | sort -u >"$scratch/functions"
        : >"$scratch/warned"
    fi
    printf '%s\n' $warned >>"$scratch/warned"
    sort -u "$scratch/warned" | comm -23 "$scratch/functions" -
}

# Prints the assembly of one hook.
entry() {
    case $machine in
    x86_64) printf '.globl __wrap_%s\n.type __wrap_%s, @function\n__wrap_%s: jmp __cairn_hook_%s\n' "$1" "$1" "$1" "$1" ;;
    aarch64) printf '.globl __wrap_%s\n.type __wrap_%s, %%function\n__wrap_%s: b __cairn_hook_%s\n' "$1" "$1" "$1" "$1" ;;
    esac
    printf '.pushsection cairn_next, "aw"\n.balign 8\n.quad 1f, __real_%s\n.popsection\n' "$1"
    printf '.pushsection .rodata\n1: .asciz "%s"\n.popsection\n' "$1"
}

# Prints the assembly of special functions. __libc_start_main must not enter code that needs
# relocations or thread-local storage, which a static program does not have yet. It registers the
# work for the end of the program.
beginning() {
    printf '.section .note.GNU-stack, ""\n.text\n.globl __wrap___libc_start_main\n'
    case $machine in
    x86_64)
        cat <<'ASSEMBLY'
.type __wrap___libc_start_main, @function
__wrap___libc_start_main:
    mov %r9, __cairn_destructors(%rip)
    lea __cairn_finish(%rip), %r9
    jmp __real___libc_start_main@PLT
ASSEMBLY
        ;;
    aarch64)
        cat <<'ASSEMBLY'
.type __wrap___libc_start_main, %function
__wrap___libc_start_main:
    adrp x16, __cairn_destructors
    str x5, [x16, :lo12:__cairn_destructors]
    adrp x5, __cairn_finish
    add x5, x5, :lo12:__cairn_finish
    b __real___libc_start_main
ASSEMBLY
        ;;
    esac
}

# Prints the assembly of dlsym, which only dynamic programs have, and of stubs for dlopen and
# dlclose. These two are not needed, because the list of next functions is asked first. With the
# real ones, the linker would print a warning for each static program.
dynamic_linker() {
    printf '.globl __cairn_dlsym, __cairn_dlopen, __cairn_dlclose\n.weak dlsym\n'
    case $machine in
    x86_64)
        cat <<'ASSEMBLY'
.type __cairn_dlsym, @function
__cairn_dlsym:
    mov dlsym@GOTPCREL(%rip), %rax
    test %rax, %rax
    je __cairn_dlopen
    jmp *%rax
.type __cairn_dlopen, @function
.type __cairn_dlclose, @function
__cairn_dlopen:
__cairn_dlclose:
    xor %eax, %eax
    ret
ASSEMBLY
        ;;
    aarch64)
        cat <<'ASSEMBLY'
.type __cairn_dlsym, %function
__cairn_dlsym:
    adrp x16, :got:dlsym
    ldr x16, [x16, :got_lo12:dlsym]
    cbz x16, __cairn_dlopen
    br x16
.type __cairn_dlopen, %function
.type __cairn_dlclose, %function
__cairn_dlopen:
__cairn_dlclose:
    mov x0, #0
    ret
ASSEMBLY
        ;;
    esac
}

machine=$(cc -dumpmachine)
machine=${machine%%-*}
case $machine in
x86_64 | aarch64) ;;
*) printf 'linked-libraries: %s is not supported\n' "$machine" >&2 && exit 1 ;;
esac

# Drops unreachable code: the standard library has more than the hooks and the code before main
# need.
printf -- '-u %s\n' $(cat "$hooks") __cairn_start __cairn_finish $api >"$scratch/roots"
ld -r --strip-debug --gc-sections -o "$scratch/merged.o" "@$scratch/roots" --whole-archive "$built"
# Removes the Rust compiler's own sections beside the code, which nm would try to read.
objcopy --remove-section=.llvmbc --remove-section=.llvmcmd "$scratch/merged.o" "$scratch/whole.o"
nm --defined-only --extern-only "$scratch/whole.o" | awk '{ print $3 }' | sort >"$scratch/defined"
grep -vx '__libc_start_main' "$hooks" | sort >"$scratch/hooks"
missing=$(comm -23 "$scratch/hooks" "$scratch/defined")
[ -z "$missing" ] || { printf 'linked-libraries: %s has no hooks for: %s\n' "$built" "$missing" >&2 && exit 1; }
sed 's/.*/& __cairn_hook_&/' "$scratch/hooks" >"$scratch/renamed"
printf '%s %s\n' dlsym __cairn_hook_dlsym dlopen __cairn_dlopen dlclose __cairn_dlclose >>"$scratch/renamed"
{ sed 's/^/__cairn_hook_/' "$scratch/hooks" && grep -E '^(__)?cairn_' "$scratch/defined"; } >"$scratch/visible"
objcopy --strip-unneeded --redefine-syms="$scratch/renamed" --keep-global-symbols="$scratch/visible" \
    "$scratch/whole.o" "$scratch/cairn.o"

plain_functions >"$scratch/plain"
mkdir "$scratch/members"
{
    beginning
    dynamic_linker
    comm -12 "$scratch/hooks" "$scratch/plain" | while read -r name; do entry "$name"; done
} >"$scratch/members/wrap.s"
comm -23 "$scratch/hooks" "$scratch/plain" | while read -r name; do
    { printf '.section .note.GNU-stack, ""\n.text\n' && entry "$name"; } >"$scratch/members/$name.s"
done
for source in "$scratch"/members/*.s; do
    as -o "${source%.s}.o" "$source"
done
ar rcs "$scratch/libcairn.a" "$scratch/cairn.o" "$scratch"/members/*.o
mv "$scratch/libcairn.a" "$directory/libcairn.a"
ln -sf libcairn_preload.so "$directory/libcairn.so"
