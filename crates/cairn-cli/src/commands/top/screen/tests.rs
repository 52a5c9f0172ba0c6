//! Screens as text, drawn from recorded answers.

use super::*;
use ratatui::Terminal;
use ratatui::backend::TestBackend;

/// Two stores, the first of which is draining: output of `cairn status --json` with edited names
/// and figures.
const RECORDED: &str = include_str!("../recorded.json");
const SECOND: Duration = Duration::from_secs(1);

fn recorded() -> Answer {
    serde_json::from_str(RECORDED).expect("it is what status prints")
}

/// Returns an answer in which the first store has copied this many bytes.
fn copied(bytes: u64) -> Answer {
    let mut answer = recorded();
    if let Some(agent) = &mut answer[0].agent {
        agent.progress.bytes_done = bytes;
    }
    answer
}

fn drawn(screen: &Screen, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("memory");
    terminal.draw(|frame| screen.draw(frame)).expect("memory takes all");
    let buffer = terminal.backend().buffer();
    let rows = buffer.content.chunks(usize::from(width));
    let text = |row: &[ratatui::buffer::Cell]| row.iter().map(|cell| cell.symbol()).collect();
    rows.map(text).collect::<Vec<String>>().join("\n")
}

#[track_caller]
fn shows(screen: &Screen, parts: &[&str]) {
    let text = drawn(screen, 100, 28);
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing:\n{text}");
    }
}

#[test]
fn a_store_that_drains_is_shown_with_its_tiers_files_and_troubles() {
    let screen = Screen::new(recorded(), SECOND);
    shows(
        &screen,
        &[
            " melt │ ising ",
            "mpirun -np 4 lmp -in in.melt",
            "ranks: 4 of 4 came, 0 finished, 1 died",
            "2.00 GiB of 8.00 GiB",
            "/nvme/melt",
            "10.0 GiB of 100 GiB",
            "drained          12 files     6.00 GiB",
            "only here         4 files     1.50 GiB",
            "to be drained  2.00 GiB  f.*.restart, step 200",
            "drained        2.00 GiB  f.*.restart, step 100",
            "512 MiB of 1.50 GiB",
            "at risk: 2.00 GiB only in the store",
            "not drained: bad.dat: its checksum differs\\x1b[2J",
            "3 complete checkpoints of f.*.restart were removed before the drain copied them;",
            "q quit",
        ],
    );
}

#[test]
fn rate_and_time_left_are_those_of_the_last_answers() {
    let mut screen = Screen::new(copied(512 << 20), SECOND);
    shows(&screen, &["to /scratch/out: 0 B/s, 1.00 GiB left, done in unknown"]);
    screen.take(Ok(copied(768 << 20)), SECOND);
    screen.take(Ok(copied(1024 << 20)), 3 * SECOND);
    // 512 MiB in the 5 seconds of three answers.
    shows(&screen, &["102 MiB/s, 512 MiB left, done in 5 s"]);
    screen.take(Ok(copied(100 << 20)), SECOND);
    shows(&screen, &["102 MiB/s, 1.40 GiB left"]);
}

#[test]
fn without_an_agent_or_an_answer_the_screen_says_so_and_goes_on() {
    let mut answer = recorded();
    answer[0].agent = None;
    let mut screen = Screen::new(answer, SECOND);
    shows(&screen, &["to /scratch/out: no agent answers", "6.00 GiB"]);
    screen.wait(4 * SECOND);
    shows(&screen, &["no answer for 4 s: last known state"]);
    screen.take(Err("job melt has no store".to_string()), SECOND);
    shows(&screen, &["job melt has no store", "6.00 GiB"]);
    screen.take(Ok(recorded()), SECOND);
    assert!(!drawn(&screen, 100, 28).contains("no store"));
}

#[test]
fn keys_choose_a_store_which_stays_chosen() {
    let mut screen = Screen::new(recorded(), SECOND);
    screen.choose(-1);
    shows(&screen, &["./ising", "nothing is drained: there is no --persist", "none found"]);
    screen.take(Ok(recorded().into_iter().rev().collect()), SECOND);
    shows(&screen, &["./ising"]);
    screen.take(Ok(Vec::new()), SECOND);
    screen.choose(1);
    shows(&screen, &["no stores"]);
}

#[test]
fn any_size_can_be_drawn() {
    let mut screen = Screen::new(recorded(), SECOND);
    (0..300).for_each(|number| screen.take(Ok(copied(number << 20)), SECOND));
    for (width, height) in [(1, 1), (20, 5), (80, 24), (300, 100)] {
        drawn(&screen, width, height);
    }
}
