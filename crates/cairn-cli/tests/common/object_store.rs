//! An object store in memory that gets into trouble when it is told to: as much of S3 as the archive needs.
//!
//! Must stay true: it stands beside a real server, not for it: it compares checksums, and it does not look at signatures.

use cairn_device::checksum;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

/// What is wrong with the answer to a request that writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// 503.
    SlowDown,
    /// 403, to any request.
    Forbidden,
    /// The connection ends in the middle of the body.
    Hangup,
    /// What arrived has another checksum.
    WrongChecksum,
    /// The server knows nothing of checksums, and keeps another byte than it got.
    NoChecksums,
}

#[derive(Clone, Default)]
struct Object {
    bytes: Vec<u8>,
    headers: BTreeMap<String, String>,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Object>,
    uploads: BTreeMap<String, (Object, BTreeMap<u32, Vec<u8>>)>,
    troubles: Vec<Trouble>,
}

/// The server; it ends with the process.
pub struct ObjectStore {
    port: u16,
    state: Arc<Mutex<State>>,
    written: Arc<AtomicU64>,
}

struct Request {
    method: String,
    name: String,
    query: BTreeMap<String, String>,
    headers: BTreeMap<String, String>,
}

impl ObjectStore {
    /// One that has these troubles, the last one first.
    pub fn start(troubles: &[Trouble]) -> ObjectStore {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port of this machine");
        let port = listener.local_addr().expect("has an address").port();
        let state = State { troubles: troubles.to_vec(), ..State::default() };
        let (state, written) = (Arc::new(Mutex::new(state)), Arc::new(AtomicU64::new(0)));
        let shared = (Arc::clone(&state), Arc::clone(&written));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (state, written) = shared.clone();
                thread::spawn(move || serve(stream, &state, &written));
            }
        });
        ObjectStore { port, state, written }
    }

    /// Its address.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// What it has: BUCKET/KEY.
    pub fn names(&self) -> Vec<String> {
        lock(&self.state).objects.keys().cloned().collect()
    }

    /// What is in an object.
    pub fn object(&self, name: &str) -> Option<Vec<u8>> {
        lock(&self.state).objects.get(name).map(|object| object.bytes.clone())
    }

    /// Requests that wrote something.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().expect("no request panics")
}

/// Answers the requests of one connection until it ends.
fn serve(stream: TcpStream, state: &Mutex<State>, written: &AtomicU64) {
    let mut reader = BufReader::new(stream.try_clone().expect("a second descriptor"));
    while let Some(request) = read_head(&mut reader) {
        let length = request.headers.get("content-length").and_then(|text| text.parse().ok());
        let mut body = vec![0; length.unwrap_or(0)];
        let writes = request.method == "PUT";
        let trouble = {
            let troubles = &mut lock(state).troubles;
            let is_due = writes || troubles.last() == Some(&Trouble::Forbidden);
            if is_due { troubles.pop() } else { None }
        };
        if trouble == Some(Trouble::Hangup) {
            let half = body.len() / 2;
            let _ = reader.read_exact(&mut body[..half]);
            return;
        }
        if reader.read_exact(&mut body).is_err() {
            return;
        }
        written.fetch_add(u64::from(writes), Ordering::Relaxed);
        let (status, headers, answer) = match trouble {
            Some(Trouble::SlowDown) => error(503, "SlowDown"),
            Some(Trouble::Forbidden) => error(403, "AccessDenied"),
            Some(Trouble::WrongChecksum) => {
                body.iter_mut().take(1).for_each(|byte| *byte ^= 1);
                carry_out(&request, body, &mut lock(state))
            }
            Some(Trouble::NoChecksums) => {
                body.iter_mut().take(1).for_each(|byte| *byte ^= 1);
                let plain = |(name, _): &(&String, &String)| name.as_str() != CHECKSUM;
                let kept = request.headers.iter().filter(plain);
                let headers = kept.map(|(name, value)| (name.clone(), value.clone())).collect();
                carry_out(&Request { headers, ..request }, body, &mut lock(state))
            }
            _ => carry_out(&request, body, &mut lock(state)),
        };
        let is_head = answer.is_none();
        let answer = answer.unwrap_or_default();
        let mut text = format!("HTTP/1.1 {status} x\r\n");
        if !is_head {
            text += &format!("content-length: {}\r\n", answer.len());
        }
        headers.iter().for_each(|(name, value)| text += &format!("{name}: {value}\r\n"));
        let mut stream = &stream;
        if stream.write_all(format!("{text}\r\n").as_bytes()).is_err()
            || stream.write_all(&answer).is_err()
        {
            return;
        }
    }
}

const CHECKSUM: &str = "x-amz-checksum-crc32c";
const WHOLE: &str = "x-amz-meta-cairn-crc32c";

fn read_head(reader: &mut impl BufRead) -> Option<Request> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|&length| length > 0)?;
    let mut words = line.split(' ');
    let (method, target) = (words.next()?.to_string(), words.next()?.to_string());
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let pair = |pair: &str| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (name.to_string(), value.replace("%2F", "/"))
    };
    let query = query.split('&').map(pair).collect();
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|&length| length > 0)?;
        let Some((name, value)) = line.trim().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_string());
    }
    Some(Request { method, name: path.trim_start_matches('/').to_string(), query, headers })
}

type Answer = (u16, Vec<(String, String)>, Option<Vec<u8>>);

fn error(status: u16, code: &str) -> Answer {
    (status, vec![], Some(format!("<Error><Code>{code}</Code></Error>").into_bytes()))
}

fn found(text: String) -> Answer {
    (200, vec![], Some(text.into_bytes()))
}

const XML: &str = "xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"";

fn carry_out(request: &Request, body: Vec<u8>, state: &mut State) -> Answer {
    let Request { name, query, headers, .. } = request;
    let crc32c = checksum::crc32c(0, &body);
    let stated = headers.get(CHECKSUM);
    if stated.is_some_and(|stated| *stated != base64(crc32c)) {
        return error(400, "BadDigest");
    }
    let echo = stated.map(|stated| (CHECKSUM.to_string(), stated.clone()));
    let kept = |name: &str| name == CHECKSUM || name == WHOLE;
    let kept = headers.iter().filter(|(name, _)| kept(name));
    let kept: BTreeMap<String, String> =
        kept.map(|(name, value)| (name.clone(), value.clone())).collect();
    let upload = query.get("uploadId");
    match (request.method.as_str(), upload) {
        ("GET", _) if query.contains_key("uploads") => {
            let list = state.uploads.keys().map(|key| {
                let key = key.split_once('/').map_or("", |(_, key)| key);
                format!("<Upload><Key>{key}</Key><UploadId>1</UploadId></Upload>")
            });
            found(format!("<List>{}</List>", list.collect::<String>()))
        }
        ("GET", _) if query.contains_key("list-type") => {
            let prefix = format!("{}/{}", name.trim_end_matches('/'), query["prefix"]);
            let names = state.objects.keys().filter(|name| name.starts_with(&prefix));
            let list = names.map(|name| {
                let key = name.split_once('/').map_or("", |(_, key)| key);
                format!(
                    "<Contents><Key>{key}</Key><LastModified>x</LastModified><ETag>x</ETag>\
                     <Size>1</Size></Contents>"
                )
            });
            let list: String = list.collect();
            found(format!(
                "<ListBucketResult {XML}><MaxKeys>1000</MaxKeys>{list}</ListBucketResult>"
            ))
        }
        ("POST", None) => {
            let object = Object { bytes: vec![], headers: kept };
            state.uploads.insert(name.clone(), (object, BTreeMap::new()));
            let answer = "<UploadId>1</UploadId></InitiateMultipartUploadResult>";
            found(format!("<InitiateMultipartUploadResult {XML}>{answer}"))
        }
        ("PUT", Some(_)) => {
            let number = query["partNumber"].parse().expect("a number");
            let Some((_, parts)) = state.uploads.get_mut(name) else {
                return error(404, "NoSuchUpload");
            };
            parts.insert(number, body);
            (
                200,
                [Some(("etag".into(), number.to_string())), echo].into_iter().flatten().collect(),
                Some(vec![]),
            )
        }
        ("POST", Some(_)) => {
            let Some((object, parts)) = state.uploads.remove(name) else {
                return error(404, "NoSuchUpload");
            };
            let bytes = parts.into_values().flatten().collect();
            state.objects.insert(name.clone(), Object { bytes, ..object });
            found("<CompleteMultipartUploadResult/>".to_string())
        }
        ("DELETE", Some(_)) => {
            state.uploads.remove(name);
            (204, vec![], Some(vec![]))
        }
        ("DELETE", None) => {
            state.objects.remove(name);
            (204, vec![], Some(vec![]))
        }
        ("PUT", None) => {
            state.objects.insert(name.clone(), Object { bytes: body, headers: kept });
            (200, echo.into_iter().collect(), Some(vec![]))
        }
        ("HEAD", _) => match state.objects.get(name) {
            Some(object) => {
                let length = ("content-length".to_string(), object.bytes.len().to_string());
                (200, object.headers.clone().into_iter().chain([length]).collect(), None)
            }
            None => (404, vec![("content-length".into(), "0".into())], None),
        },
        _ => match state.objects.get(name) {
            Some(object) => (200, vec![], Some(object.bytes.clone())),
            None => error(404, "NoSuchKey"),
        },
    }
}

/// A CRC32C as S3 writes it, by way of its bits.
fn base64(crc32c: u32) -> String {
    let digits: Vec<char> =
        ('A'..='Z').chain('a'..='z').chain('0'..='9').chain("+/".chars()).collect();
    let bits = format!("{crc32c:032b}0000");
    let digit = |at: usize| digits[usize::from_str_radix(&bits[at..at + 6], 2).expect("bits")];
    (0..36).step_by(6).map(digit).chain("==".chars()).collect()
}
