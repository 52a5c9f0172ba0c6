//! System calls about files: their numbers, and which of their arguments are paths and descriptors.
//!
//! The check recognises what programs do past the C library by this table. A call that is not
//! listed, such as `futex`, is not about files, or takes another kind of descriptor.

/// A system call.
pub struct KernelCall {
    /// Its name.
    pub name: &'static str,
    /// Its number on this machine.
    pub number: libc::c_long,
    /// Indexes of the arguments that are paths.
    pub paths: &'static [usize],
    /// Indexes of the arguments that are file descriptors.
    pub descriptors: &'static [usize],
}

/// Call that sets up an io_uring, which reaches files past every filter and library.
pub const RING: libc::c_long = libc::SYS_io_uring_setup;

macro_rules! calls {
    ($($(#[$attribute:meta])* $name:ident $constant:ident [$($path:literal)*] [$($descriptor:literal)*];)*) => {
        /// All calls that are about files.
        pub const KERNEL_CALLS: &[KernelCall] = &[$(
            $(#[$attribute])*
            KernelCall {
                name: stringify!($name),
                number: libc::$constant,
                paths: &[$($path),*],
                descriptors: &[$($descriptor),*],
            },
        )*];
    };
}

calls! {
    read SYS_read [] [0];
    write SYS_write [] [0];
    pread64 SYS_pread64 [] [0];
    pwrite64 SYS_pwrite64 [] [0];
    readv SYS_readv [] [0];
    writev SYS_writev [] [0];
    preadv SYS_preadv [] [0];
    pwritev SYS_pwritev [] [0];
    preadv2 SYS_preadv2 [] [0];
    pwritev2 SYS_pwritev2 [] [0];
    lseek SYS_lseek [] [0];
    fsync SYS_fsync [] [0];
    fdatasync SYS_fdatasync [] [0];
    ftruncate SYS_ftruncate [] [0];
    fallocate SYS_fallocate [] [0];
    getdents64 SYS_getdents64 [] [0];
    mmap SYS_mmap [] [4];
    copy_file_range SYS_copy_file_range [] [0 2];
    splice SYS_splice [] [0 2];
    sendfile SYS_sendfile [] [0 1];
    openat SYS_openat [1] [];
    openat2 SYS_openat2 [1] [];
    newfstatat SYS_newfstatat [1] [];
    statx SYS_statx [1] [];
    faccessat SYS_faccessat [1] [];
    faccessat2 SYS_faccessat2 [1] [];
    statfs SYS_statfs [0] [];
    truncate SYS_truncate [0] [];
    mkdirat SYS_mkdirat [1] [];
    mknodat SYS_mknodat [1] [];
    unlinkat SYS_unlinkat [1] [];
    symlinkat SYS_symlinkat [2] [];
    readlinkat SYS_readlinkat [1] [];
    renameat2 SYS_renameat2 [1 3] [];
    linkat SYS_linkat [1 3] [];
    fchmodat SYS_fchmodat [1] [];
    fchownat SYS_fchownat [1] [];
    utimensat SYS_utimensat [1] [];
    chdir SYS_chdir [0] [];
    chroot SYS_chroot [0] [];
    mount SYS_mount [0 1] [];
    execve SYS_execve [0] [];
    execveat SYS_execveat [1] [];
    getxattr SYS_getxattr [0] [];
    setxattr SYS_setxattr [0] [];
    listxattr SYS_listxattr [0] [];
    inotify_add_watch SYS_inotify_add_watch [1] [];
    name_to_handle_at SYS_name_to_handle_at [1] [];
    io_uring_setup SYS_io_uring_setup [] [];
    io_uring_enter SYS_io_uring_enter [] [];
    #[cfg(target_arch = "x86_64")]
    open SYS_open [0] [];
    #[cfg(target_arch = "x86_64")]
    creat SYS_creat [0] [];
    #[cfg(target_arch = "x86_64")]
    stat SYS_stat [0] [];
    #[cfg(target_arch = "x86_64")]
    lstat SYS_lstat [0] [];
    #[cfg(target_arch = "x86_64")]
    access SYS_access [0] [];
    #[cfg(target_arch = "x86_64")]
    mkdir SYS_mkdir [0] [];
    #[cfg(target_arch = "x86_64")]
    rmdir SYS_rmdir [0] [];
    #[cfg(target_arch = "x86_64")]
    unlink SYS_unlink [0] [];
    #[cfg(target_arch = "x86_64")]
    symlink SYS_symlink [1] [];
    #[cfg(target_arch = "x86_64")]
    readlink SYS_readlink [0] [];
    #[cfg(target_arch = "x86_64")]
    rename SYS_rename [0 1] [];
    #[cfg(target_arch = "x86_64")]
    renameat SYS_renameat [1 3] [];
    #[cfg(target_arch = "x86_64")]
    link SYS_link [0 1] [];
    #[cfg(target_arch = "x86_64")]
    chmod SYS_chmod [0] [];
    #[cfg(target_arch = "x86_64")]
    chown SYS_chown [0] [];
    #[cfg(target_arch = "x86_64")]
    utimes SYS_utimes [0] [];
}

/// Returns the call with this number if it is about files.
pub fn of_number(number: libc::c_long) -> Option<&'static KernelCall> {
    KERNEL_CALLS.iter().find(|call| call.number == number)
}
