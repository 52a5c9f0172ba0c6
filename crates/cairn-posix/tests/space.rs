//! Waiting for space.

mod common;

use std::cell::Cell;

use cairn_core::Moment;
use cairn_platform::sys::monotonic_ms;
use cairn_posix::Errno;
use cairn_posix::data::space;
use common::{mount, turn};

/// Mechanism: a waiter looked for space in vain, and then did not run for a while. Meanwhile the
/// agent freed some, and then announced that there was nothing more to free. The waiter saw that
/// announcement before it looked again.
///
/// Consequence: on a busy machine a write failed with ENOSPC while there was space.
///
/// Fix: a waiter that sees that there is no hope looks once more.
#[test]
fn space_that_was_made_before_hope_ended_is_found() {
    let _turn = turn();
    let fs = mount().fs();
    fs.offer_space(60_000);
    let looks = Cell::new(0);
    let found = space::wait(mount(), || {
        looks.set(looks.get() + 1);
        if looks.get() == 1 {
            fs.report_no_space(Moment(monotonic_ms()));
            return Err(Errno(libc::ENOSPC));
        }
        Ok(())
    });
    assert_eq!((found, looks.get()), (Ok(()), 2));

    let found = space::wait(mount(), || {
        fs.report_no_space(Moment(monotonic_ms()));
        Err::<(), _>(Errno(libc::ENOSPC))
    });
    assert_eq!(found, Err(Errno(libc::ENOSPC)));
    fs.offer_space(0);
}
