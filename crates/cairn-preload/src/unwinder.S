// The functions that unwind the stack, for the library that is preloaded: each goes to that of the
// library which the process unwinds with. `__cairn_unwinder` (src/unwinder.rs) finds them when one
// is called for the first time. If libgcc_s had to be there from the start, every process of a job
// would pay for it, some 0.1 ms of the 0.3 that a start took longer.
//
// Must stay true: whoever called is what the function behind finds as its caller, with all
// registers that calls preserve: so each is a jump. The order is that of FUNCTIONS in
// src/unwinder.rs.

#if defined(__x86_64__)

.macro function name, index
    .globl \name
    .hidden \name
    .type \name, @function
    .balign 16
\name:
    mov addresses + 8 * \index(%rip), %rax
    test %rax, %rax
    je 1f
    jmp *%rax
1:  mov $\index, %eax
    jmp find
    .size \name, . - \name
.endm

.text
find:
    push %rdi
    push %rsi
    push %rdx
    push %rcx
    push %r8
    push %r9
    sub $8, %rsp
    mov %eax, %edi
    lea addresses(%rip), %rsi
    call __cairn_unwinder
    add $8, %rsp
    pop %r9
    pop %r8
    pop %rcx
    pop %rdx
    pop %rsi
    pop %rdi
    jmp *%rax

#elif defined(__aarch64__)

.macro function name, index
    .globl \name
    .hidden \name
    .type \name, %function
    .balign 16
\name:
    adrp x16, addresses + 8 * \index
    ldr x16, [x16, :lo12:addresses + 8 * \index]
    cbz x16, 1f
    br x16
1:  mov x17, #\index
    b find
    .size \name, . - \name
.endm

.text
find:
    stp x29, x30, [sp, #-80]!
    stp x0, x1, [sp, #16]
    stp x2, x3, [sp, #32]
    stp x4, x5, [sp, #48]
    stp x6, x7, [sp, #64]
    mov x0, x17
    adrp x1, addresses
    add x1, x1, :lo12:addresses
    bl __cairn_unwinder
    mov x16, x0
    ldp x6, x7, [sp, #64]
    ldp x4, x5, [sp, #48]
    ldp x2, x3, [sp, #32]
    ldp x0, x1, [sp, #16]
    ldp x29, x30, [sp], #80
    br x16

#endif

function _Unwind_Backtrace, 0
function _Unwind_DeleteException, 1
function _Unwind_GetDataRelBase, 2
function _Unwind_GetIP, 3
function _Unwind_GetIPInfo, 4
function _Unwind_GetLanguageSpecificData, 5
function _Unwind_GetRegionStart, 6
function _Unwind_GetTextRelBase, 7
function _Unwind_RaiseException, 8
function _Unwind_Resume, 9
function _Unwind_SetGR, 10
function _Unwind_SetIP, 11

.local addresses
.comm addresses, 8 * 12, 8

.section .note.GNU-stack, "", %progbits
