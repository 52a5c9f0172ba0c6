//! `cairn top`: a live view of stores, from the answers that `cairn status` gives.
//!
//! Must stay true: the screen responds to keys whatever the agent does, because another thread asks
//! for answers. The terminal is restored at the end. Names of a store's files and programs cannot
//! move the cursor.
//!
//! Collects no data itself.

mod screen;

use crate::Context;
use crate::commands::status;
use crate::error::{Error, ReportError, Result};
use crate::output::duration;
use crate::store::Roots;
use crate::store::job_name::JobOrAll;
use clap::Args;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use screen::{Answer, Screen};
use std::io::{self, IsTerminal};
use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// Interval between two checks for keys and answers.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Minimum time between two requests.
const EVERY_MIN_S: f64 = 0.1;

const EXAMPLES: &str = "\
Examples:
  cairn top                  every store of this user on this node
  cairn top melt --every 5s

Keys: left and right select the store, q quits.";

/// Watch stores: tiers, files, drain, bytes at risk.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    #[command(flatten)]
    job: JobOrAll,
    /// Time between two requests
    #[arg(long, value_name = "TIME", value_parser = duration::argument, default_value = "1s")]
    every: f64,
}

/// Runs the command.
pub fn run(context: &Context, arguments: &Arguments) -> Result<()> {
    if context.json || !io::stdout().is_terminal() {
        return Err(Error::Report(ReportError::NoTerminal));
    }
    // An unknown job is reported as an ordinary error, before the screen is set up.
    let first = ask(&context.roots, arguments.job.as_deref())?;
    let every = Duration::from_secs_f64(arguments.every.max(EVERY_MIN_S));
    let answers = start_asking(context.roots.clone(), arguments.job.clone(), every)
        .map_err(Error::file("start a thread for", Path::new("the screen")))?;
    let mut screen = Screen::new(first, every);
    let failed = Error::file("draw on", Path::new("the terminal"));
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let shown = show(&mut terminal, &mut screen, &answers);
    ratatui::restore();
    shown.map_err(Error::file("draw on", Path::new("the terminal")))
}

/// Returns the state of the stores as `cairn status --json` reports it.
fn ask(roots: &Roots, job: Option<&str>) -> Result<Answer> {
    let reports = status::reports(roots, job)?;
    let answer = serde_json::to_value(&reports).and_then(serde_json::from_value);
    Ok(answer.expect("what a screen shows is a part of what status says"))
}

/// An answer, and the time since the last one.
type Answered = (Result<Answer, String>, Duration);

/// Starts a thread that asks, because an agent that does not answer must not stop the screen. The
/// thread ends with the process, or when the receiver is dropped. Errors: it cannot be started.
fn start_asking(
    roots: Roots,
    job: Option<String>,
    every: Duration,
) -> std::io::Result<Receiver<Answered>> {
    let (sender, answers) = mpsc::channel();
    let mut asked = Instant::now();
    thread::Builder::new().spawn(move || {
        loop {
            thread::sleep(every);
            let answer = ask(&roots, job.as_deref()).map_err(|error| error.to_string());
            let since = std::mem::replace(&mut asked, Instant::now()).elapsed();
            if sender.send((answer, since)).is_err() {
                return;
            }
        }
    })?;
    Ok(answers)
}

fn show(
    terminal: &mut DefaultTerminal,
    screen: &mut Screen,
    answers: &Receiver<Answered>,
) -> io::Result<()> {
    loop {
        terminal.draw(|frame| screen.draw(frame))?;
        while event::poll(Duration::ZERO)? {
            if let Event::Key(key) = event::read()? {
                if !obey(screen, key) {
                    return Ok(());
                }
            }
        }
        match answers.recv_timeout(LOOK_EVERY) {
            Ok((answer, since)) => screen.take(answer, since),
            Err(RecvTimeoutError::Timeout) => screen.wait(LOOK_EVERY),
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}

/// Handles a key. Returns false if it ends the command.
fn obey(screen: &mut Screen, key: KeyEvent) -> bool {
    if key.kind == KeyEventKind::Release {
        return true;
    }
    match key.code {
        KeyCode::Char('q') | KeyCode::Esc => return false,
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return false,
        KeyCode::Left | KeyCode::Char('h') => screen.choose(-1),
        KeyCode::Right | KeyCode::Char('l') | KeyCode::Tab => screen.choose(1),
        _ => {}
    }
    true
}
