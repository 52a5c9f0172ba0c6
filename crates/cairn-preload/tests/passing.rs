//! Descriptors passed over sockets stay open on the way, and are closed if nobody receives them.

mod common;

use common::same_on_both;

/// Mechanism: a descriptor in flight held no reference; its receiver took one at first use.
/// Consequence: `EBADF` for a file whose sender closed it, or ended, before that. Fix: the message
/// carries a token with a lock, which is released with the token's last copy. The token holds the
/// file open (`fd_passing.rs`).
#[test]
fn descriptor_that_its_sender_closes_on_the_way_is_open_when_it_arrives() {
    same_on_both("passing", "sender_closes");
}

#[test]
fn descriptor_whose_sender_ends_or_is_killed_arrives() {
    same_on_both("passing", "sender_ends");
}

#[test]
fn executed_program_passes_on_what_it_never_used() {
    same_on_both("passing", "executed_program_passes_on");
}

#[test]
fn message_that_is_looked_at_first_brings_a_descriptor_each_time() {
    same_on_both("passing", "looked_at_first");
}

#[test]
fn descriptors_without_room_are_lost_and_the_others_arrive() {
    same_on_both("passing", "cut_short");
}

#[test]
fn descriptors_of_all_kinds_arrive_in_one_message() {
    same_on_both("passing", "mixed");
}

#[test]
fn descriptors_of_several_messages_arrive_at_once() {
    same_on_both("passing", "several_messages");
}

#[test]
fn descriptors_are_passed_by_calls_by_number() {
    same_on_both("passing", "by_number");
}

#[test]
fn messages_that_cannot_be_sent_fail_as_on_a_disk() {
    same_on_both("passing", "refusals");
}

#[test]
fn passing_leaves_no_descriptor_behind() {
    same_on_both("passing", "nothing_is_left_over");
}

#[test]
fn descriptor_that_nobody_receives_is_closed() {
    same_on_both("passing", "never_received");
}

#[test]
fn descriptors_are_passed_while_children_are_forked() {
    same_on_both("passing", "children_are_forked_meanwhile");
}

#[test]
fn descriptor_fetched_from_another_process_outlives_the_owners_close() {
    same_on_both("passing", "fetched_from_another_process");
}
