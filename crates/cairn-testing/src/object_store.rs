//! An object store in memory that fails on demand. It has as much of S3 as the archive needs.
//!
//! Must stay true: it complements real servers (tests/apps) and does not replace them. It compares
//! checksums, but does not verify signatures.

// Each test file is a program of its own and uses only a part of this.
#![allow(dead_code)]

use cairn_platform::checksum;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;

/// A failure of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// A PUT gets status 503.
    SlowDown,
    /// The connection ends in the middle of the body of a PUT.
    Hangup,
    /// The body of a PUT arrives with a flipped bit, so its checksum does not match.
    WrongChecksum,
    /// The server ignores the checksum of a PUT and stores a changed byte.
    NoChecksums,
    /// The connection ends before the response, after the parts of an object were joined.
    Unanswered,
    /// The connection ends in the middle of the body of a GET. Descriptions of checkpoints are
    /// exempt.
    CutOff,
    /// A GET of the description of a checkpoint gets status 404.
    Gone,
    /// A GET of the description of a checkpoint gets status 403, as from a storage class that takes
    /// hours to read.
    Frozen,
}

/// Most names, uploads or parts in one list; the next list continues.
const PAGE: usize = 2;
/// Longest name of an object, bytes.
const KEY_BYTES_MAX: usize = 1024;

/// How the server treats all requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mood {
    /// Serves them properly.
    #[default]
    Fine,
    /// Ends every connection.
    Availability,
    /// Denies access: status 403.
    Forbidding,
    /// Has no such bucket: status 404.
    Bucketless,
    /// Does not answer requests that write this part of an object.
    StuckAt(u32),
    /// Does not list uploads or parts: status 501.
    Secretive,
    /// Does not answer at all.
    Silent,
    /// Returns lists that continue at the same place forever.
    Endless,
}

#[derive(Clone, Default)]
struct Object {
    bytes: Vec<u8>,
    headers: BTreeMap<String, String>,
}

/// An unfinished multipart upload.
struct Upload {
    name: String,
    object: Object,
    parts: BTreeMap<u32, SentPart>,
}

struct SentPart {
    bytes: Vec<u8>,
    /// Whether the client stated its checksum, which was compared.
    is_compared: bool,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Object>,
    uploads: BTreeMap<u64, Upload>,
    begun: u64,
    /// Numbers of the parts received, of all objects.
    parts: Vec<u32>,
    troubles: Vec<Trouble>,
    mood: Mood,
    /// An object that the server refuses permanently, BUCKET/KEY.
    refused: Option<String>,
    /// Whether a request has met a stuck or silent server.
    is_awaited: bool,
}

/// Callback with the number of bytes of a PUT.
type Witness = Box<dyn Fn(u64) + Send + Sync>;

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    written: AtomicU64,
    witness: Witness,
}

/// The server. It ends with the process.
pub struct ObjectStore {
    port: u16,
    shared: Arc<Shared>,
}

struct Request {
    method: String,
    name: String,
    query: BTreeMap<String, String>,
    headers: BTreeMap<String, String>,
}

impl Request {
    fn is_about_uploads(&self) -> bool {
        self.query.contains_key("uploads") || self.query.contains_key("uploadId")
    }
}

impl ObjectStore {
    /// Starts a server with these failures; the last one comes first.
    pub fn start(troubles: &[Trouble]) -> ObjectStore {
        ObjectStore::watched(troubles, Box::new(|_| ()))
    }

    /// As `start`. `witness` is called with the number of body bytes of each PUT before it is
    /// answered.
    pub fn watched(troubles: &[Trouble], witness: Witness) -> ObjectStore {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port of this machine");
        let port = listener.local_addr().expect("has an address").port();
        let state = Mutex::new(State { troubles: troubles.to_vec(), ..State::default() });
        let (changed, written) = (Condvar::new(), AtomicU64::new(0));
        let shared = Arc::new(Shared { state, changed, written, witness });
        let served = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&served);
                thread::spawn(move || shared.serve(stream));
            }
        });
        ObjectStore { port, shared }
    }

    /// Returns the address of the server.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Sets how the server treats all requests.
    pub fn set_mood(&self, mood: Mood) {
        self.shared.state().mood = mood;
        self.shared.changed.notify_all();
    }

    /// Waits until a request has met a stuck or silent server.
    pub fn wait_until_stuck(&self) {
        let state = self.shared.state();
        let waited = self.shared.changed.wait_while(state, |state| !state.is_awaited);
        drop(waited.expect("no request panics"));
    }

    /// Sets the only object that the server refuses permanently, BUCKET/KEY; `None` for no object.
    pub fn refuse(&self, name: Option<&str>) {
        self.shared.state().refused = name.map(str::to_string);
    }

    /// Adds a failure that comes next.
    pub fn trouble(&self, trouble: Trouble) {
        self.shared.state().troubles.push(trouble);
    }

    /// Whether all failures have happened.
    pub fn has_had_them(&self) -> bool {
        self.shared.state().troubles.is_empty()
    }

    /// Returns the names of all objects, BUCKET/KEY.
    pub fn names(&self) -> Vec<String> {
        self.shared.state().objects.keys().cloned().collect()
    }

    /// Returns the number of uploads that are neither complete nor aborted.
    pub fn unfinished(&self) -> usize {
        self.shared.state().uploads.len()
    }

    /// Returns the number of multipart uploads ever begun.
    pub fn begun(&self) -> u64 {
        self.shared.state().begun
    }

    /// Returns the numbers of the parts received since the last call, in order.
    pub fn take_parts(&self) -> Vec<u32> {
        std::mem::take(&mut self.shared.state().parts)
    }

    /// Changes a part of the only unfinished upload.
    pub fn damage_part(&self, number: u32, change: impl FnOnce(&mut Vec<u8>)) {
        let mut state = self.shared.state();
        let mut uploads = state.uploads.values_mut();
        let upload = uploads.next().filter(|_| uploads.next().is_none()).expect("is the only one");
        change(&mut upload.parts.get_mut(&number).expect("is there").bytes);
    }

    /// Returns the content of an object.
    pub fn object(&self, name: &str) -> Option<Vec<u8>> {
        self.shared.state().objects.get(name).map(|object| object.bytes.clone())
    }

    /// Changes the content of an object without its checksum and other metadata.
    pub fn damage(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        change(&mut self.shared.state().objects.get_mut(name).expect("is there").bytes);
    }

    /// Removes an object, as if it were lost.
    pub fn lose(&self, name: &str) {
        self.shared.state().objects.remove(name).expect("was there");
    }

    /// Returns the number of PUT requests.
    pub fn written(&self) -> u64 {
        self.shared.written.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no request panics")
    }

    /// Answers the requests of one connection until it ends.
    fn serve(&self, stream: TcpStream) {
        let mut reader = BufReader::new(stream.try_clone().expect("a second descriptor"));
        while let Some(request) = read_head(&mut reader) {
            if self.serve_one(&request, &mut reader, &stream).is_none() {
                return;
            }
        }
    }

    /// Answers one request. Returns `None` if the connection ends.
    fn serve_one(
        &self,
        request: &Request,
        reader: &mut impl Read,
        mut stream: &TcpStream,
    ) -> Option<()> {
        let length = request.headers.get("content-length").and_then(|text| text.parse().ok());
        let mut body = vec![0; length.unwrap_or(0)];
        let trouble = self.state().trouble_for(request);
        if self.state().mood == Mood::Availability {
            return None;
        }
        if trouble == Some(Trouble::Hangup) {
            let half = body.len() / 2;
            let _ = reader.read_exact(&mut body[..half]);
            return None;
        }
        reader.read_exact(&mut body).ok()?;
        if request.method == "PUT" {
            self.written.fetch_add(1, Ordering::Relaxed);
            (self.witness)(body.len() as u64);
        }
        self.wait_while(Mood::Silent);
        if let Some(number) = request.query.get("partNumber") {
            self.wait_while(Mood::StuckAt(number.parse().expect("a number")));
        }
        let mood = self.state().mood;
        let (status, headers, answer) = match mood {
            Mood::Forbidding => error(403, "AccessDenied"),
            Mood::Bucketless => error(404, "NoSuchBucket"),
            Mood::Endless => found(format!(
                "<ListBucketResult {XML}><NextContinuationToken>x</NextContinuationToken>\
                 <NextKeyMarker>x</NextKeyMarker><NextUploadIdMarker>1</NextUploadIdMarker>\
                 </ListBucketResult>"
            )),
            Mood::Secretive if request.method == "GET" && request.is_about_uploads() => {
                error(501, "NotImplemented")
            }
            _ => self.answer(request, body, trouble),
        };
        if trouble == Some(Trouble::Unanswered) {
            return None;
        }
        let mut text = format!("HTTP/1.1 {status} x\r\n");
        if let Some(answer) = &answer {
            text += &format!("content-length: {}\r\n", answer.len());
        }
        headers.iter().for_each(|(name, value)| text += &format!("{name}: {value}\r\n"));
        stream.write_all(format!("{text}\r\n").as_bytes()).ok()?;
        let answer = answer.unwrap_or_default();
        if trouble == Some(Trouble::CutOff) {
            let _ = stream.write_all(&answer[..answer.len() / 2]);
            return None;
        }
        stream.write_all(&answer).ok()
    }

    fn wait_while(&self, mood: Mood) {
        let mut state = self.state();
        state.is_awaited |= state.mood == mood;
        self.changed.notify_all();
        let waited = self.changed.wait_while(state, |state| state.mood == mood);
        drop(waited.expect("no request panics"));
    }

    fn answer(&self, request: &Request, mut body: Vec<u8>, trouble: Option<Trouble>) -> Answer {
        let mut state = self.state();
        if matches!(trouble, Some(Trouble::WrongChecksum | Trouble::NoChecksums)) {
            body.iter_mut().take(1).for_each(|byte| *byte ^= 1);
        }
        let mut headers = request.headers.clone();
        if trouble == Some(Trouble::NoChecksums) {
            headers.remove(CHECKSUM);
        }
        match trouble {
            Some(Trouble::SlowDown) => error(503, "SlowDown"),
            Some(Trouble::Gone) => error(404, "NoSuchKey"),
            Some(Trouble::Frozen) => error(403, "InvalidObjectState"),
            _ if state.refused.as_ref() == Some(&request.name) => {
                state.refusal(request, "ParentIsObject")
            }
            _ if key(&request.name).len() > KEY_BYTES_MAX => {
                state.refusal(request, "KeyTooLongError")
            }
            _ => state.carry_out(request, &headers, body),
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
        (name.to_string(), decoded(value))
    };
    let query = query.split('&').map(pair).collect();
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|&length| length > 0)?;
        let Some((name, value)) = line.trim().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_string());
    }
    Some(Request { method, name: decoded(path.trim_start_matches('/')), query, headers })
}

/// Decodes the %XX sequences of a text.
fn decoded(text: &str) -> String {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at(2);
        bytes.push(u8::from_str_radix(digits, 16).expect("two digits"));
        bytes.extend(rest.as_bytes());
    }
    String::from_utf8(bytes).expect("UTF-8")
}

type Answer = (u16, Vec<(String, String)>, Option<Vec<u8>>);

fn error(status: u16, code: &str) -> Answer {
    (status, vec![], Some(format!("<Error><Code>{code}</Code></Error>").into_bytes()))
}

fn found(text: String) -> Answer {
    (200, vec![], Some(text.into_bytes()))
}

/// Returns the key in BUCKET/KEY.
fn key(name: &str) -> &str {
    name.split_once('/').map_or("", |(_, key)| key)
}

const XML: &str = "xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"";

impl State {
    /// Returns the refusal of an object. The response to HEAD has no body.
    fn refusal(&self, request: &Request, code: &str) -> Answer {
        match request.method.as_str() {
            "HEAD" => (400, vec![("content-length".into(), "0".into())], None),
            _ => error(400, code),
        }
    }

    /// Takes the next failure if it applies to this request.
    fn trouble_for(&mut self, request: &Request) -> Option<Trouble> {
        let key = key(&request.name);
        let is_file = !key.is_empty() && !key.contains("cairn-checkpoint.");
        let completes = request.method == "POST" && request.query.contains_key("uploadId");
        let is_due = match self.troubles.last()? {
            Trouble::Unanswered => completes,
            Trouble::CutOff => request.method == "GET" && is_file,
            Trouble::Gone | Trouble::Frozen => {
                request.method == "GET" && !key.is_empty() && !is_file
            }
            _ => request.method == "PUT",
        };
        if is_due { self.troubles.pop() } else { None }
    }

    fn carry_out(
        &mut self,
        request: &Request,
        headers: &BTreeMap<String, String>,
        body: Vec<u8>,
    ) -> Answer {
        let Request { name, query, .. } = request;
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
        let number = query.get("uploadId").map(|text| text.parse::<u64>().expect("a number"));
        match (request.method.as_str(), number) {
            ("GET", _) if query.contains_key("uploads") => self.list_uploads(query),
            ("GET", _) if query.contains_key("list-type") => self.list(name, query),
            ("GET", Some(number)) => self.list_parts(number, query),
            ("POST", None) => {
                let object = Object { bytes: vec![], headers: kept };
                self.begun += 1;
                let upload = Upload { name: name.clone(), object, parts: BTreeMap::new() };
                self.uploads.insert(self.begun, upload);
                let number = self.begun;
                let answer =
                    format!("<UploadId>{number}</UploadId></InitiateMultipartUploadResult>");
                found(format!("<InitiateMultipartUploadResult {XML}>{answer}"))
            }
            ("PUT", Some(number)) => {
                let part = query["partNumber"].parse().expect("a number");
                let Some(upload) = self.uploads.get_mut(&number) else {
                    return error(404, "NoSuchUpload");
                };
                let etag = ("etag".to_string(), etag(&body));
                upload.parts.insert(part, SentPart { bytes: body, is_compared: echo.is_some() });
                self.parts.push(part);
                (200, [Some(etag), echo].into_iter().flatten().collect(), Some(vec![]))
            }
            ("POST", Some(number)) => {
                let Some(upload) = self.uploads.get(&number) else {
                    return error(404, "NoSuchUpload");
                };
                let Some(bytes) = upload.made_of(&String::from_utf8_lossy(&body)) else {
                    return error(400, "InvalidPart");
                };
                let upload = self.uploads.remove(&number);
                let Upload { name, object, .. } = upload.expect("was there a moment ago");
                self.objects.insert(name, Object { bytes, ..object });
                found("<CompleteMultipartUploadResult/>".to_string())
            }
            ("DELETE", Some(number)) => {
                self.uploads.remove(&number);
                (204, vec![], Some(vec![]))
            }
            ("DELETE", None) => {
                self.objects.remove(name);
                (204, vec![], Some(vec![]))
            }
            ("PUT", None) => {
                self.objects.insert(name.clone(), Object { bytes: body, headers: kept });
                (200, echo.into_iter().collect(), Some(vec![]))
            }
            ("HEAD", _) => match self.objects.get(name) {
                Some(object) => {
                    let length = ("content-length".to_string(), object.bytes.len().to_string());
                    (200, object.headers.clone().into_iter().chain([length]).collect(), None)
                }
                None => (404, vec![("content-length".into(), "0".into())], None),
            },
            _ => self.get(name, headers),
        }
    }

    fn get(&self, name: &str, headers: &BTreeMap<String, String>) -> Answer {
        let Some(object) = self.objects.get(name) else { return error(404, "NoSuchKey") };
        let etag = etag(&object.bytes);
        if headers.get("if-match").is_some_and(|wanted| *wanted != etag) {
            return error(412, "PreconditionFailed");
        }
        let from = headers.get("range").and_then(|range| range.strip_prefix("bytes="));
        let from = from.map(|range| range.trim_end_matches('-').parse::<usize>().expect("a place"));
        let of_object = object.headers.clone().into_iter().chain([("etag".to_string(), etag)]);
        match from {
            None => (200, of_object.collect(), Some(object.bytes.clone())),
            Some(from) => (206, of_object.collect(), Some(object.bytes[from..].to_vec())),
        }
    }

    fn list_uploads(&self, query: &BTreeMap<String, String>) -> Answer {
        let all = self.uploads.iter().map(|(number, upload)| (key(&upload.name), number));
        let mut of_prefix: Vec<(&str, String)> = all
            .filter(|(key, _)| key.starts_with(&query["prefix"]))
            .map(|(key, number)| (key, number.to_string()))
            .collect();
        of_prefix.sort();
        if let (Some(key), Some(number)) = (query.get("key-marker"), query.get("upload-id-marker"))
        {
            of_prefix.retain(|one| *one > (key.as_str(), number.clone()));
        }
        let is_cut = of_prefix.len() > PAGE;
        of_prefix.truncate(PAGE);
        let list = of_prefix.iter().map(|(key, number)| {
            format!("<Upload><Key>{key}</Key><UploadId>{number}</UploadId></Upload>")
        });
        let next = of_prefix.last().filter(|_| is_cut).map(|(key, number)| {
            let markers = [("NextKeyMarker", *key), ("NextUploadIdMarker", number)];
            markers.map(|(name, text)| format!("<{name}>{text}</{name}>")).concat()
        });
        found(format!("<List>{}{}</List>", next.unwrap_or_default(), list.collect::<String>()))
    }

    fn list_parts(&self, number: u64, query: &BTreeMap<String, String>) -> Answer {
        let Some(upload) = self.uploads.get(&number) else { return error(404, "NoSuchUpload") };
        let after =
            query.get("part-number-marker").map_or(0, |text| text.parse().expect("a number"));
        let mut left = upload.parts.range(after + 1..);
        let (mut list, mut last) = (String::new(), 0);
        for (number, part) in left.by_ref().take(PAGE) {
            let (bytes, etag) = (part.bytes.len(), etag(&part.bytes).replace('"', "&quot;"));
            let sum = base64(checksum::crc32c(0, &part.bytes));
            let sum = format!("<ChecksumCRC32C>{sum}</ChecksumCRC32C>");
            let sum = if part.is_compared { sum } else { String::new() };
            list += &format!("<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag>");
            list += &format!("<Size>{bytes}</Size>{sum}</Part>");
            last = *number;
        }
        let is_cut = left.next().is_some();
        let more = format!(
            "<IsTruncated>{is_cut}</IsTruncated><NextPartNumberMarker>{last}</NextPartNumberMarker>"
        );
        found(format!("<ListPartsResult {XML}>{more}{list}</ListPartsResult>"))
    }

    fn list(&self, bucket: &str, query: &BTreeMap<String, String>) -> Answer {
        let bucket = bucket.trim_end_matches('/');
        let prefix = &query["prefix"];
        let keys = self.objects.keys().filter(|name| name.split('/').next() == Some(bucket));
        let keys = keys.map(|name| key(name)).filter(|key| key.starts_with(prefix));
        let entry = |key: &str| {
            let parts = key[prefix.len()..].split_once('/');
            match parts.filter(|_| query.contains_key("delimiter")) {
                Some((part, _)) => (format!("{prefix}{part}/"), true),
                None => (key.to_string(), false),
            }
        };
        let entries: std::collections::BTreeSet<(String, bool)> = keys.map(entry).collect();
        // The last name of a page is the continuation token of the next.
        let after = query.get("continuation-token");
        let mut left = entries.into_iter().filter(|(name, _)| after.is_none_or(|at| name > at));
        let page: Vec<(String, bool)> = left.by_ref().take(PAGE).collect();
        let shown = |(name, is_directory): &(String, bool)| match is_directory {
            true => format!("<CommonPrefixes><Prefix>{name}</Prefix></CommonPrefixes>"),
            // The entry has only what a list must have: s3s-fs has no ETag in it either.
            false => format!("<Contents><Key>{name}</Key></Contents>"),
        };
        let next = page.last().filter(|_| left.next().is_some());
        let next =
            next.map(|(name, _)| format!("<NextContinuationToken>{name}</NextContinuationToken>"));
        let (next, page) = (next.unwrap_or_default(), page.iter().map(shown).collect::<String>());
        found(format!("<ListBucketResult {XML}>{next}{page}</ListBucketResult>"))
    }
}

impl Upload {
    /// Joins the parts that the request names. Returns `None` if one differs from the part
    /// received.
    fn made_of(&self, text: &str) -> Option<Vec<u8>> {
        let inner = |part: &str, name: &str| {
            let (_, rest) = part.split_once(&format!("<{name}>"))?;
            Some(rest.split_once("</")?.0.to_string())
        };
        let mut bytes = Vec::new();
        for named in text.split("<Part>").skip(1) {
            let part = self.parts.get(&inner(named, "PartNumber")?.parse().ok()?)?;
            bytes.extend(
                Some(&part.bytes).filter(|_| Some(etag(&part.bytes)) == inner(named, "ETag"))?,
            );
        }
        Some(bytes)
    }
}

/// Returns an entity tag that differs for different contents.
fn etag(bytes: &[u8]) -> String {
    format!("\"{:08x}\"", checksum::crc32c(0, bytes))
}

/// Encodes a CRC32C in base64 as S3 does, via its binary digits.
fn base64(crc32c: u32) -> String {
    let digits: Vec<char> =
        ('A'..='Z').chain('a'..='z').chain('0'..='9').chain("+/".chars()).collect();
    let bits = format!("{crc32c:032b}0000");
    let digit = |at: usize| digits[usize::from_str_radix(&bits[at..at + 6], 2).expect("bits")];
    (0..36).step_by(6).map(digit).chain("==".chars()).collect()
}
