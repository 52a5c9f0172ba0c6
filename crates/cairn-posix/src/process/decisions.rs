//! Decisions about the C library functions that the preload library exports no hook for, and about
//! the cases in which a hook refuses.
//!
//! A function is *served* if the library exports it and no entry of `REFUSED` says otherwise, so
//! there is no list of served functions. Names are exact, but a final `*` stands for any rest.
//! Functions that are not about files are named as narrowly as their families allow, so that a
//! function that a new C library adds shows up as undecided.
//!
//! The tests of `cairn-preload` compare this file with the library's exports and write
//! docs/SYMBOLS.md from it. `cairn check` and the report of counted calls (`calls.rs`) judge by it.
//! Programs of a job never read it.

/// Functions with the same decision and the same reason.
pub struct Family {
    /// The reason.
    pub why: &'static str,
    /// Names, separated by spaces.
    pub names: &'static str,
}

/// Hooks that refuse, always or in some case.
pub struct Refusal {
    /// Names, separated by spaces.
    pub names: &'static str,
    /// Name of the errno that they fail with.
    pub errno: &'static str,
    /// Case in which they fail.
    pub case: &'static str,
}

/// Start of the case of a refusal that has no condition.
const ALWAYS: &str = "always";
/// End of the case of a refusal that other file systems make as well, so that programs expect it.
const AS_USUAL: [&str; 2] = ["as for every regular file", "as on most file systems"];

impl Refusal {
    /// Whether the refusal depends only on the file being one of ours.
    pub fn is_unconditional(&self) -> bool {
        self.case.starts_with(ALWAYS)
    }

    /// Whether other file systems refuse the same for a regular file, so that programs lose
    /// nothing.
    pub fn is_usual(&self) -> bool {
        AS_USUAL.iter().any(|usual| self.case.ends_with(usual))
    }
}

/// Returns the refusals of a function.
pub fn refusals(name: &str) -> impl Iterator<Item = &'static Refusal> {
    REFUSED.iter().filter(move |refusal| refusal.names.split_whitespace().any(|one| one == name))
}

/// Returns the family in `families` that a function belongs to.
pub fn family_of(families: &'static [Family], name: &str) -> Option<&'static Family> {
    families.iter().find(|family| covers(family.names, name))
}

/// Whether one of the patterns in `names` matches `name`.
pub fn covers(names: &str, name: &str) -> bool {
    names.split_whitespace().any(|pattern| match pattern.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => name == pattern,
    })
}

/// Functions that the preload library exports and refuses, as docs/SEMANTICS.md says.
pub const REFUSED: &[Refusal] = &[
    Refusal {
        names: "getxattr lgetxattr fgetxattr setxattr lsetxattr fsetxattr removexattr lremovexattr fremovexattr",
        errno: "ENOTSUP",
        case: "names that do not begin with `user.`",
    },
    Refusal {
        names: "fallocate fallocate64",
        errno: "EOPNOTSUPP",
        case: "modes that move data; keeping the size where the range goes past it",
    },
    Refusal { names: "mmap mmap64", errno: "EOPNOTSUPP", case: "`MAP_SYNC`" },
    Refusal {
        names: "mknod mknodat __xmknod __xmknodat mkfifo mkfifoat",
        errno: "EPERM",
        case: "FIFOs, sockets, devices",
    },
    Refusal { names: "name_to_handle_at", errno: "EOPNOTSUPP", case: "always" },
    Refusal {
        names: "accept accept4 bind connect __connect listen shutdown getpeername getsockname getsockopt setsockopt recv \
                recvfrom recvmsg recvmmsg __recv_chk __recvfrom_chk send __send sendto sendmsg sendmmsg",
        errno: "ENOTSOCK",
        case: "always, as for every regular file",
    },
    Refusal {
        names: "tcgetattr tcsetattr tcdrain tcflow tcflush tcsendbreak tcgetpgrp tcsetpgrp tcgetsid ttyname ttyname_r \
                __ttyname_r_chk ptsname ptsname_r __ptsname_r_chk login_tty",
        errno: "ENOTTY",
        case: "always, as for every regular file",
    },
    Refusal {
        names: "dprintf __dprintf_chk",
        errno: "E2BIG",
        case: "more than 64 arguments, on any descriptor",
    },
    Refusal {
        names: "ioctl",
        errno: "EOPNOTSUPP",
        case: "`FICLONE`, `FICLONERANGE`, `FIDEDUPERANGE`, as on most file systems",
    },
    Refusal {
        names: "io_uring_setup io_uring_queue_init io_uring_queue_init_params io_uring_queue_init_mem \
                io_uring_get_probe",
        errno: "ENOSYS",
        case: "always, in every process of a job",
    },
    Refusal { names: "epoll_ctl", errno: "EPERM", case: "always, as for every regular file" },
    Refusal { names: "inotify_add_watch", errno: "ENOSPC", case: "always" },
    Refusal {
        names: "ioctl",
        errno: "ENOTTY",
        case: "every other request but `FIONREAD`, `FIONBIO`, `FIOCLEX`, `FIONCLEX`, as for every regular file",
    },
    Refusal {
        names: "fcntl fcntl64 __fcntl",
        errno: "EINVAL",
        case: "leases, pipes, signals, seals: every command but duplicates, flags and locks",
    },
    Refusal {
        names: "preadv2 preadv64v2 pwritev2 pwritev64v2",
        errno: "EOPNOTSUPP",
        case: "unknown flags",
    },
    Refusal {
        names: "rename renameat renameat2 link linkat",
        errno: "EXDEV",
        case: "between Cairn and another file system",
    },
    Refusal { names: "renameat2", errno: "EINVAL", case: "`RENAME_WHITEOUT`" },
    Refusal {
        names: "freopen freopen64",
        errno: "EOPNOTSUPP",
        case: "streams without a descriptor",
    },
    Refusal { names: "fopen fopen64", errno: "EINVAL", case: "`ccs=` in the mode" },
    Refusal {
        names: "fgetwc getwc fgetwc_unlocked getwc_unlocked getwchar getwchar_unlocked ungetwc fputwc putwc fputwc_unlocked \
                putwc_unlocked putwchar putwchar_unlocked fputws fputws_unlocked fgetws fgetws_unlocked __fgetws_chk \
                __fgetws_unlocked_chk vfwprintf vwprintf __vfwprintf_chk __vwprintf_chk vfwscanf vwscanf __isoc99_vfwscanf \
                __isoc99_vwscanf __isoc23_vfwscanf __isoc23_vwscanf",
        errno: "EOPNOTSUPP",
        case: "always",
    },
    Refusal {
        names: "execl execlp execle",
        errno: "E2BIG",
        case: "more than 63 arguments (`execle`: 62)",
    },
    Refusal {
        names: "open open64 openat openat64 __open __open64 __open_2 __open64_2 __openat_2 __openat64_2",
        errno: "EOPNOTSUPP",
        case: "`O_TMPFILE` without `O_EXCL`, where metadata is in a file",
    },
];

/// Functions about files for which the C library's own code does what is right, or all that can be
/// done.
pub const PASSED: &[Family] = &[
    Family {
        why: "work on a stream: the C library's own `FILE`, which reads and writes through hooks if its file is ours",
        names: "clearerr clearerr_unlocked fcloseall feof feof_unlocked ferror ferror_unlocked fflush_unlocked \
                fgetc_unlocked fgetpos fgetpos64 fgets_unlocked flockfile fprintf fputc_unlocked fputs_unlocked \
                fread_unlocked fscanf fsetpos fsetpos64 ftrylockfile funlockfile fwrite_unlocked getc_unlocked getchar \
                getchar_unlocked getdelim getline gets getw printf putc_unlocked putchar putchar_unlocked puts putw rewind \
                scanf setbuf setbuffer setlinebuf setvbuf vfprintf vfscanf vprintf vscanf _flushlbf __fbufsize __fgets_chk \
                __fgets_unlocked_chk __flbf __fpending __fprintf_chk __fpurge __fread_chk __fread_unlocked_chk __freadable \
                __freading __fsetlocking __fwritable __fwriting __getdelim __gets_chk __isoc99_fscanf __isoc99_scanf \
                __isoc99_vfscanf __isoc99_vscanf __isoc23_fscanf __isoc23_scanf __isoc23_vfscanf __isoc23_vscanf __overflow \
                __printf_chk __uflow __underflow __vfprintf_chk __vfscanf __vprintf_chk _IO_*",
    },
    Family { why: "tell whether a stream is wide, which one of ours is not", names: "fwide" },
    Family {
        why: "print on `stderr` or on a stream they are given",
        names: "argp_error argp_failure argp_help argp_parse argp_state_help argp_usage err error error_at_line errx fmtmsg \
                getopt getopt_long getopt_long_only __posix_getopt malloc_info malloc_stats perror psiginfo psignal putgrent \
                putpwent putsgent putspent verr verrx vwarn vwarnx warn warnx __assert __assert_fail __assert_perror_fail \
                addmntent fgetgrent fgetgrent_r fgetpwent fgetpwent_r fgetsgent fgetsgent_r fgetspent fgetspent_r getmntent \
                getmntent_r __getmntent_r",
    },
    Family {
        why: "make a stream on memory, or of the caller's functions",
        names: "fmemopen fopencookie open_memstream open_wmemstream",
    },
    Family {
        why: "note what `posix_spawn` is to do; that is done by hooks",
        names: "posix_spawn_file_actions_*",
    },
    Family { why: "make a name for a file in the kernel's `/tmp`", names: "tmpnam tmpnam_r" },
    Family {
        why: "take a descriptor of another kind; the kernel says `EBADF` of a placeholder",
        names: "sockatmark getsourcefilter setsourcefilter getipv4sourcefilter setipv4sourcefilter epoll_wait epoll_pwait \
                epoll_pwait2 eventfd_read eventfd_write timerfd_gettime timerfd_settime inotify_rm_watch fanotify_mark \
                mq_close mq_getattr mq_notify mq_receive mq_send mq_setattr mq_timedreceive mq_timedsend pidfd_send_signal \
                fsconfig grantpt unlockpt tee vmsplice getmsg getpmsg putmsg putpmsg isastream fattach fdetach setns",
    },
    Family {
        why: "read or write files at fixed places, or named by the system's configuration",
        names: "getaliasby* getaliasent* setaliasent endaliasent getfs* setfsent endfsent getgrent* getgrgid* getgrnam* \
                getgrouplist getpw getpwent* getpwnam* getpwuid* getsgent* getsgnam* getspent* getspnam* setgrent setpwent \
                setsgent setspent endgrent endpwent endsgent endspent getttyent getttynam setttyent endttyent getusershell \
                setusershell endusershell getutent* getutid* getutline* getutx* setutent setutxent endutent endutxent \
                pututline pututxline updwtmp updwtmpx utmpname utmpxname login logout logwtmp getlogin getlogin_r \
                __getlogin_r_chk cuserid getpass lckpwdf ulckpwdf ttyslot getloadavg get_nprocs* get_avphys_pages \
                get_phys_pages syslog vsyslog openlog closelog setlogmask __syslog_chk __vsyslog_chk getdate getdate_r \
                setlocale newlocale __newlocale iconv_open bindtextdomain",
    },
    Family {
        why: "note an instruction in an entry, which the walk reads",
        names: "fts_set fts64_set",
    },
    Family {
        why: "order or free what a hook gave",
        names: "alphasort alphasort64 versionsort versionsort64 globfree globfree64 glob_pattern_p",
    },
    Family {
        why: "use or free what a function gave that opens files past the hooks",
        names: "catgets catclose endmntent __endmntent wordfree",
    },
    Family {
        why: "take a name, a handle or a descriptor that is never one of ours",
        names: "mq_unlink shm_unlink open_by_handle_at fchflags init_module nfsservctl",
    },
    Family {
        why: "act on mapped memory",
        names: "process_madvise mincore mlock mlock2 munlock process_vm_readv process_vm_writev shmat shmdt shmget shmctl",
    },
    Family { why: "concern the whole of the kernel's file systems", names: "ustat bdflush" },
    Family {
        why: "make a process or end one past what is needed to keep files clean",
        names: "abort",
    },
    Family { why: "end in the hook that runs the destructors", names: "on_exit" },
    Family {
        why: "change rights that we do not consider, or limits of others",
        names: "setfsuid setfsgid vlimit",
    },
    Family {
        why: "read the outcome of a request where a hook has left it",
        names: "aio_error aio_error64 aio_return aio_return64 aio_suspend aio_suspend64 aio_cancel aio_cancel64 aio_init",
    },
];

/// Functions about streams that are never served for ours: wide-character functions with variable
/// arguments, which a hook cannot receive. Nothing reports that they were called.
pub const WIDE: &[Family] = &[Family {
    why: "work on a wide stream, which a stream of ours never is: they give -1",
    names: "fwprintf fwscanf wprintf wscanf __fwprintf_chk __wprintf_chk __isoc99_fwscanf __isoc99_wscanf __isoc23_fwscanf \
            __isoc23_wscanf __woverflow __wuflow __wunderflow",
}];

/// Functions about files that are never served for ours: they take a path to the kernel past the
/// hooks, and fail.
pub const PAST: &[Family] = &[
    Family {
        why: "take a path to the kernel's own, which says `ENOENT` below the prefix",
        names: "acct chroot pivot_root mount umount umount2 mount_setattr move_mount swapon swapoff quotactl uselib revoke \
                chflags",
    },
    Family {
        why: "open a file that they are told, past the hooks: `ENOENT` below the prefix",
        names: "catopen dlopen dlmopen setmntent __setmntent wordexp",
    },
];

/// Functions that are not about files, paths, descriptors or streams.
pub const NOT_FILES: &[Family] = &[
    Family {
        why: "characters, strings and memory",
        names: "str* stp* memc* memm* mempcpy memr* memset memfrob wcs* wcp* wmem* index rindex bcmp bcopy bzero ffs ffsl \
                ffsll swab rawmemchr __str* __stp* __mem* __rawmemchr __wcs* __wcp* __wmem* __bzero __ffs isalnum* isalpha* \
                isascii isblank* iscntrl* isctype isdigit* isgraph* isinf* islower* isnan* isprint* ispunct* isspace* \
                isupper* isw* isxdigit* __isa* __isb* __iscntrl* __isctype __isd* __isg* __isinf* __isl* __isn* __isp* \
                __iss* __isu* __isw* __isx* toascii tolower* toupper* __to* _tolower _toupper __ctype_* wct* __wct* tow* mb* \
                __mb* c8rtomb c16rtomb c32rtomb btowc wcrtomb __wcrtomb_chk wcwidth explicit_bzero __explicit_bzero_chk \
                argz_* __argz_* envz_* basename dirname __xpg_basename rpmatch fnmatch regcomp regerror regexec regfree re_* \
                step advance a64l l64a __xpg_strerror_r",
    },
    Family {
        why: "text made in memory or read from it",
        names: "asprintf vasprintf __asprintf __asprintf_chk __vasprintf_chk snprintf vsnprintf sprintf vsprintf \
                __snprintf_chk __sprintf_chk __vsnprintf __vsnprintf_chk __vsprintf_chk sscanf vsscanf __vsscanf swprintf \
                swscanf vswprintf vswscanf __swprintf_chk __vswprintf_chk __isoc99_sscanf __isoc99_vsscanf __isoc99_swscanf \
                __isoc99_vswscanf __isoc23_sscanf __isoc23_vsscanf __isoc23_swscanf __isoc23_vswscanf __isoc23_strto* \
                __isoc23_wcsto* obstack_printf obstack_vprintf __obstack_* parse_printf_format printf_size printf_size_info \
                register_printf_* __printf_fp sgetsgent* sgetspent*",
    },
    Family {
        why: "numbers and sorting",
        names: "abs labs llabs imaxabs div ldiv lldiv imaxdiv atof atoi atol atoll ecvt* fcvt* gcvt qecvt* qfcvt* qgcvt \
                copysign* finite* __finite* __signbit* frexp* ldexp* modf* scalbn* bsearch qsort* hcreate* hdestroy* \
                hsearch* insque remque lfind lsearch tdelete tdestroy tfind tsearch twalk* drand48* erand48* jrand48* \
                lcong48* lrand48* mrand48* nrand48* seed48* srand48* rand rand_r srand random* srandom* initstate* setstate* \
                arc4random* getrandom getentropy",
    },
    Family {
        why: "threads and waiting",
        names: "pthread_* __pthread_* _pthread_* mtx_* cnd_* thrd_* tss_* call_once sem_* sched_* __sched_*",
    },
    Family {
        why: "names and protocols of the network",
        names: "res_* __res_* ns_* dn_* __dn_* inet_* inet6_* ether_* gethost* __gethostname_chk getnet* getserv* getproto* \
                getrpc* sethost* setnet* setserv* setproto* setrpc* endhost* endnet* endserv* endproto* endrpc* getaddrinfo* \
                freeaddrinfo getnameinfo gai_* if_* getifaddrs freeifaddrs hton* ntoh* rcmd* rexec* ruserok* rresvport* \
                ruserpass iruserok* __ivaliduser bindresvport hstrerror herror __h_errno_location __nss_* innetgr \
                __cmsg_nxthdr xdr* svc* __rpc_* _rpc_* clnt* auth* _authenticate pmap_* key_* des_* cbc_crypt ecb_crypt \
                xencrypt xdecrypt passwd2des netname* user2netname host2netname getnetname getpublickey getsecretkey \
                get_myaddress callrpc registerrpc xprt_* rtime _seterr_reply",
    },
    Family {
        why: "memory of the process",
        names: "malloc malloc_trim malloc_usable_size calloc realloc* free cfree valloc pvalloc aligned_alloc posix_memalign \
                memalign mallinfo* mallopt __libc_* __default_morecore mcheck* mprobe mtrace muntrace tr_break obstack_free \
                _obstack_* brk sbrk __sbrk pkey_alloc pkey_free pkey_get pkey_set process_mrelease",
    },
    Family {
        why: "time",
        names: "time times vtimes clock* asctime* ctime* gmtime* __gmtime_r localtime* mktime timegm timelocal strptime* \
                timespec_* tzset difftime dysize adjtime* __adjtimex ntp_* stime settimeofday gettimeofday __gettimeofday \
                nanosleep __nanosleep sleep usleep alarm ualarm timer_* getitimer setitimer ftime",
    },
    Family {
        why: "signals",
        names: "sigabbrev_np sigaddset sigaltstack sigandset sigblock sigdelset sigdescr_np sigemptyset sigfillset \
                siggetmask sighold sigignore siginterrupt sigisemptyset sigismember siglongjmp sigorset sigpause sigpending \
                sigprocmask sigqueue sigrelse sigreturn sigset sigsetmask sigstack sigsuspend sigtimedwait sigvec sigwait \
                sigwaitinfo __sigaddset __sigdelset __sigismember __sigpause __sigsetjmp __sigsuspend __xpg_sigpause kill \
                killpg raise gsignal tgkill pause setjmp _setjmp longjmp _longjmp __longjmp_chk",
    },
    Family {
        why: "the process, its identity and its environment",
        names: "getenv secure_getenv __secure_getenv setenv putenv unsetenv clearenv getauxval __getauxval getpid __getpid \
                getppid getpgid __getpgid getpgrp __bsd_getpgrp setpgid __setpgid setpgrp getsid setsid gettid getuid \
                geteuid getgid getegid getresuid getresgid getgroups __getgroups_chk group_member getpriority setpriority \
                nice getrlimit getrlimit64 getrusage wait __wait wait3 wait4 waitid waitpid __waitpid arch_prctl \
                __arch_prctl capget capset personality ptrace getcontext setcontext makecontext swapcontext getcpu \
                modify_ldt ioperm iopl posix_spawnattr_* atexit __cxa_* __register_atfork",
    },
    Family {
        why: "the system",
        names: "confstr __confstr_chk sysconf __sysconf getpagesize __getpagesize getdtablesize gnu_* uname sysinfo sysctl \
                __sysctl getdomainname __getdomainname_chk setdomainname sethostname sethostid gethostid reboot klogctl \
                vhangup create_module delete_module get_kernel_syms query_module setlogin getsubopt hasmntopt ctermid cfget* \
                cfset* cfmakeraw gtty stty sstk getutmp getutmpx msgctl msgget msgrcv msgsnd semctl semget semop semtimedop",
    },
    Family {
        why: "languages and conversion",
        names: "localeconv nl_langinfo* __nl_langinfo_l uselocale __uselocale duplocale __duplocale freelocale __freelocale \
                gettext ngettext dgettext __dgettext dngettext dcgettext __dcgettext dcngettext textdomain \
                bind_textdomain_codeset iconv iconv_close addseverity",
    },
    Family {
        why: "the program itself",
        names: "dl_iterate_phdr dladdr dladdr1 dlclose dlerror dlinfo dlsym dlvsym _dl_* __tls_get_addr backtrace \
                __backtrace backtrace_symbols __backtrace_symbols __chk_fail __stack_chk_fail __errno_location __fdelt_chk \
                __fdelt_warn __fentry__ mcount _mcount _mcleanup moncontrol monstartup __monstartup profil sprofil \
                __profile_frequency __cyg_profile_* __x86_*",
    },
];
