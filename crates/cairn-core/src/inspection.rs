//! Looking at a namespace from outside: whether it is sound, what a medium holds, what has changed.

pub(crate) mod changes;
pub(crate) mod check;
pub(crate) mod inspect;
