//! Exit codes of the commands.

/// Exit code: the request was refused.
pub const EXIT_USAGE: i32 = 2;
/// Exit code of `cairn fsck`, as in fsck(8): damage was left unrepaired.
pub const EXIT_NOT_REPAIRED: i32 = 4;
/// Exit code: an operation failed.
pub const EXIT_FAILURE: i32 = 1;
/// Exit code: the program succeeded, but its files could not be drained (`EX_TEMPFAIL`: the drain
/// can be repeated).
pub const EXIT_DRAIN: i32 = 75;
/// Exit code: the program cannot be executed.
pub const EXIT_NOT_EXECUTABLE: i32 = 126;
/// Exit code: the program does not exist.
pub const EXIT_NOT_FOUND: i32 = 127;
