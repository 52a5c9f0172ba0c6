//! Counters of a target, served in Prometheus's text format 0.0.4 over HTTP.
//!
//! Must stay true: counting takes no lock. A client of the metrics never delays a connection,
//! however slow it is.
//!
//! Does not authenticate: everybody who reaches the address learns the names of subsystems.

use cairn_platform::prometheus::Exposition;
use std::io::{BufRead, BufReader, ErrorKind, Read, Result, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::Directory;
use crate::subsystem::Subsystem;

/// Longest request, bytes.
const REQUEST_BYTES_MAX: u64 = 8 << 10;
/// Time limit of a request, from accepting it to the end of the answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Most requests answered at once.
const THREADS: usize = 8;

/// Address at which the counters of a target are served.
#[derive(Debug)]
pub struct Metrics {
    listener: TcpListener,
    directory: Arc<Directory>,
    patience: Duration,
}

impl Metrics {
    /// Listens at `address`. Errors: the system's.
    pub fn bind(address: SocketAddr, directory: Arc<Directory>) -> Result<Metrics> {
        Ok(Metrics { listener: TcpListener::bind(address)?, directory, patience: PATIENCE })
    }

    /// Address at which it listens.
    pub fn address(&self) -> Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Answers requests for as long as the process lives.
    pub fn serve(&self) {
        thread::scope(|scope| {
            for _ in 1..THREADS {
                // If this fails, one request fewer is answered at once.
                let _ = thread::Builder::new()
                    .name("metrics".to_string())
                    .spawn_scoped(scope, || self.answer_each());
            }
            self.answer_each();
        });
    }

    fn answer_each(&self) {
        for stream in self.listener.incoming().flatten() {
            let stream = Timed { stream: &stream, until: Instant::now() + self.patience };
            // A client that hangs up has lost interest.
            let _ = answer(stream, &self.directory);
        }
    }
}

/// A stream with one deadline for all reads and writes.
struct Timed<'a> {
    stream: &'a TcpStream,
    until: Instant,
}

impl Timed<'_> {
    fn left(&self) -> Result<Option<Duration>> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(buffer)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> Result<()> {
        self.stream.flush()
    }
}

fn answer(mut stream: Timed<'_>, directory: &Directory) -> Result<()> {
    let mut lines = BufReader::new(Read::take(&mut stream, REQUEST_BYTES_MAX));
    let mut request = String::new();
    lines.read_line(&mut request)?;
    // The rest of the request does not matter, but closing with unread bytes looks like a failure.
    let mut line = String::new();
    while lines.read_line(&mut line)? > 0 && !line.trim().is_empty() {
        line.clear();
    }
    let mut words = request.split_whitespace();
    let (status, body) = match (words.next(), words.next()) {
        (Some("GET"), Some("/metrics" | "/")) => ("200 OK", describe(directory)),
        (Some("GET"), _) => ("404 Not Found", "ask for /metrics\n".to_string()),
        _ => ("405 Method Not Allowed", String::new()),
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
         Content-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}

/// All counters.
fn describe(directory: &Directory) -> String {
    let totals = directory.totals();
    let mut figures = Exposition::new("cairn_target_");
    let (accepted, ended) = (totals.accepted.get(), totals.ended.get());
    let mut one = |name: &str, kind: &str, help: &str, value: u64| {
        figures.family(name, kind, help);
        figures.sample(&[], value);
    };
    one("connections", "gauge", "Open connections.", accepted.saturating_sub(ended));
    one("connections_total", "counter", "Accepted connections.", accepted);
    let help = "Connections refused because there were too many.";
    one("refused_total", "counter", help, totals.refused.get());
    let help = "Connections closed because the host violated the protocol.";
    one("malformed_total", "counter", help, totals.malformed.get());
    one("memory_waits_total", "counter", "Commands that waited for memory.", totals.waits.get());
    let subsystems = directory.all();
    let mut each = |name: &str, kind: &str, help: &str, value: &dyn Fn(&Subsystem) -> u64| {
        figures.family(name, kind, help);
        for subsystem in &subsystems {
            figures.sample(&[("subsystem", subsystem.name().as_str())], value(subsystem));
        }
    };
    each("controllers", "gauge", "Controllers in use.", &|one| one.controllers_count() as u64);
    each("size_bytes", "gauge", "Total size of the namespaces.", &|one| {
        one.namespaces().map(|(_, namespace)| namespace.shape().bytes()).sum()
    });
    each("reads_total", "counter", "Reads.", &|one| one.counters().reads.get());
    each("read_bytes_total", "counter", "Bytes read.", &|one| one.counters().read_bytes.get());
    each("writes_total", "counter", "Writes.", &|one| one.counters().writes.get());
    each("written_bytes_total", "counter", "Bytes written.", &|one| {
        one.counters().written_bytes.get()
    });
    each("flushes_total", "counter", "Flushes.", &|one| one.counters().flushes.get());
    each("other_commands_total", "counter", "Other commands.", &|one| one.counters().others.get());
    each("errors_total", "counter", "Commands that were refused or failed.", &|one| {
        one.counters().errors.get()
    });
    let help = "Connection attempts by hosts that failed to authenticate or are not allowed.";
    each("strangers_total", "counter", help, &|one| one.counters().strangers.get());
    figures.into_text()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subsystem::Limits;

    /// Mechanism: requests were answered one after another.
    ///
    /// Consequence: a client that connected and said nothing made others wait until its time was
    /// over.
    ///
    /// Fix: a few requests are answered at once.
    #[test]
    fn who_says_nothing_keeps_nobody_else_waiting() {
        let directory = Arc::new(Directory::new(Limits::default()));
        let mut metrics = Metrics::bind(([127, 0, 0, 1], 0).into(), directory).unwrap();
        metrics.patience = Duration::from_secs(3600);
        let address = metrics.address().unwrap();
        thread::spawn(move || metrics.serve());
        let silent: Vec<_> = (1..THREADS).map(|_| TcpStream::connect(address).unwrap()).collect();
        let mut asker = TcpStream::connect(address).unwrap();
        asker.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
        let mut told = String::new();
        asker.read_to_string(&mut told).unwrap();
        assert!(told.contains("cairn_target_connections 0"), "{told}");
        drop(silent);
    }

    /// Mechanism: each read had its own time limit.
    ///
    /// Consequence: a client that sent a byte now and then kept all others waiting for hours.
    ///
    /// Fix: one deadline for the whole request.
    #[test]
    fn who_has_no_time_left_is_not_heard_although_something_is_there() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let mut asker = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        asker.write_all(b"G").unwrap();
        let (stream, _) = listener.accept().unwrap();
        let (mut byte, until) = ([0], Instant::now() + Duration::from_secs(600));
        assert_eq!(Timed { stream: &stream, until }.read(&mut byte).unwrap(), 1);
        asker.write_all(b"E").unwrap();
        let mut over = Timed { stream: &stream, until: Instant::now() };
        assert_eq!(over.read(&mut byte).unwrap_err().kind(), ErrorKind::TimedOut);
        assert_eq!(over.write(&byte).unwrap_err().kind(), ErrorKind::TimedOut);
    }
}
