//! Requests to the S3 server, each with its response checked.
//!
//! Must stay true: bytes count as sent only when the server compared their checksum, or they were
//! read back. No message about a request shows its URL, because the URL is signed. A request that
//! fails for now is repeated a few times.

mod answers;
mod unfinished;

pub use unfinished::Listed;

use answers::{Failure, Names};
use base64ct::{Base64, Encoding};
use cairn_platform::checksum;
use quick_xml::escape::partial_escape;
use rusty_s3::actions::{
    CompleteMultipartUpload, CreateMultipartUpload, DeleteObject, GetObject, HeadObject, PutObject,
    S3Action, UploadPart,
};
use rusty_s3::{Bucket, Credentials, Method, UrlStyle};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::Read;
use std::time::Duration;
use ureq::http::{Request, Response};
use ureq::{Agent, Body};

use crate::archive::credentials;
use crate::model::archive::{ArchivePolicy, Location};
use crate::model::error::{Error, Refusal, Result};

/// Validity of a signed request.
const VALID: Duration = Duration::from_secs(3600);
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);
/// Time limit for the start of a response, and for each read and write on the connection.
const ANSWER_PATIENCE: Duration = Duration::from_secs(60);
/// Maximum number of attempts per request.
const ATTEMPTS_MAX: u32 = 4;
/// Delay before the first repetition. Each further delay is four times as long.
const RETRY_FIRST: Duration = Duration::from_millis(200);
/// Maximum length of a response or object that is read into memory.
const ANSWER_BYTES_MAX: u64 = 64 << 20;
/// Maximum number of pages of one list.
const PAGES_MAX: u32 = 100_000;
/// Bytes of an object that are read at a time.
const READ_BYTES: usize = 1 << 20;
/// Header with the CRC32C of a request's or an object's bytes, in S3's encoding.
const CHECKSUM: &str = "x-amz-checksum-crc32c";
/// Metadata header with the CRC32C of a whole object, eight hexadecimal digits.
const WHOLE: &str = "x-amz-meta-cairn-crc32c";

/// Length and checksum of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Content {
    /// Length of the object.
    pub bytes: u64,
    /// CRC32C of the object.
    pub crc32c: u32,
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes with checksum {:08x}", self.bytes, self.crc32c)
    }
}

/// Progress of reading an object.
#[derive(Default)]
struct SoFar {
    content: Content,
    etag: Option<String>,
}

/// Description of an object at the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Length of the object.
    pub bytes: u64,
    /// Checksum of the whole object, from the metadata written with it.
    pub crc32c: Option<u32>,
    /// Whether the server compared the checksum of the bytes it received.
    pub was_compared: bool,
}

/// A part of an object that the server has.
pub struct Part {
    etag: String,
    crc32c: u32,
    was_compared: bool,
}

impl Part {
    /// Whether the server compared its checksum.
    pub fn was_compared(&self) -> bool {
        self.was_compared
    }
}

/// A client for one bucket.
pub struct Client<'a> {
    agent: Agent,
    bucket: Bucket,
    credentials: Credentials,
    location: Location,
    /// Sleeps for a time. Returns false if the work is to be given up.
    pause: &'a Pause<'a>,
}

/// Sleeps for a time. Returns false if the work is to be given up.
pub type Pause<'a> = dyn Fn(Duration) -> bool + Sync + 'a;

impl<'a> Client<'a> {
    /// Returns a client for the bucket in `policy`. Errors: the policy names no usable bucket;
    /// there are no credentials.
    pub fn new(policy: &ArchivePolicy, pause: &'a Pause<'a>) -> Result<Client<'a>> {
        Client::with(policy, credentials::find()?, ANSWER_PATIENCE, pause)
    }

    /// Returns a client with these credentials that waits at most `patience` for a response.
    fn with(
        policy: &ArchivePolicy,
        credentials: Credentials,
        patience: Duration,
        pause: &'a Pause<'a>,
    ) -> Result<Client<'a>> {
        let unusable = |problem: String| Error::Object {
            action: "use",
            object: policy.url.clone(),
            problem,
            refusal: Refusal::OfServer,
        };
        let location = Location::parse(&policy.url).map_err(|what| unusable(what.to_string()))?;
        let amazon = || format!("https://s3.{}.amazonaws.com", policy.region);
        let style = match (&policy.endpoint, location.bucket.contains('.')) {
            (None, false) => UrlStyle::VirtualHost,
            // A private server has a single host name, and a wildcard certificate does not cover
            // bucket names with dots.
            _ => UrlStyle::Path,
        };
        let endpoint = policy.endpoint.clone().unwrap_or_else(amazon);
        let endpoint =
            endpoint.parse().map_err(|_| unusable(format!("{endpoint} is not a URL")))?;
        let bucket = Bucket::new(endpoint, style, location.bucket.clone(), policy.region.clone())
            .map_err(|error| unusable(error.to_string()))?;
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_connect(Some(CONNECT_PATIENCE))
            .timeout_recv_response(Some(patience))
            .timeout_per_read(Some(patience))
            .timeout_per_write(Some(patience))
            .build();
        Ok(Client { agent: config.new_agent(), bucket, credentials, location, pause })
    }

    /// Returns the bucket and prefix.
    pub fn location(&self) -> &Location {
        &self.location
    }

    /// Returns the address of an object: server, bucket and name.
    pub fn address(&self, key: &str) -> String {
        format!("{}{key}", self.bucket.base_url())
    }

    /// Returns the server's description of the object `key`, or None if there is none.
    pub fn look(&self, key: &str) -> Result<Option<Found>> {
        let action = || HeadObject::new(&self.bucket, Some(&self.credentials), key);
        let headers = [("x-amz-checksum-mode", "ENABLED".to_string())];
        let answer = self.send("look at", key, &action, &headers, None)?;
        let is_refused = (400..500).contains(&answer.status) && !answer.may_pass();
        if is_refused && !matches!(answer.status, 401 | 403) {
            // A response to HEAD has no body, so the reason is unknown. If something is wrong with
            // the object's name, the write of the object reports it.
            return Ok(None);
        }
        answer.check(self, "look at", key)?;
        let bytes = answer.header("content-length").and_then(|text| text.parse().ok());
        let was_compared = answer.header(CHECKSUM).is_some();
        let crc32c = answer.whole();
        Ok(Some(Found { bytes: bytes.unwrap_or(u64::MAX), crc32c, was_compared }))
    }

    /// Sends an object that `get` can read back, and verifies it. Errors: it is too long for `get`.
    pub fn put_small(&self, key: &str, bytes: &[u8]) -> Result<()> {
        let length = bytes.len() as u64;
        if length >= ANSWER_BYTES_MAX {
            let problem = format!("it would have {length} bytes, and nobody could read it");
            return Err(self.error("write", key, problem, Refusal::OfObject));
        }
        let crc32c = checksum::crc32c(0, bytes);
        match self.put(key, bytes, crc32c)? {
            true => Ok(()),
            false => self.compare(key, Content { bytes: length, crc32c }),
        }
    }

    /// Sends an object in one request. Returns whether the server compared its checksum.
    pub fn put(&self, key: &str, bytes: &[u8], crc32c: u32) -> Result<bool> {
        let action = || PutObject::new(&self.bucket, Some(&self.credentials), key);
        let headers = [(CHECKSUM, checksum_text(crc32c)), (WHOLE, format!("{crc32c:08x}"))];
        let answer = self.send("write", key, &action, &headers, Some(bytes))?;
        answer.check(self, "write", key)?;
        answer.compared(self, key, crc32c)
    }

    /// Begins a multipart upload. Returns its id.
    pub fn begin(&self, key: &str, crc32c: u32) -> Result<String> {
        let action = || CreateMultipartUpload::new(&self.bucket, Some(&self.credentials), key);
        let algorithm = ("x-amz-checksum-algorithm", "CRC32C".to_string());
        let headers = [algorithm, (WHOLE, format!("{crc32c:08x}"))];
        let answer = self.send("begin", key, &action, &headers, Some(&[]))?;
        answer.check(self, "begin", key)?;
        let parsed = CreateMultipartUpload::parse_response(&answer.text());
        let parsed = parsed.map_err(|_| self.strange("begin", key, "its answer has no number"))?;
        Ok(parsed.upload_id().to_string())
    }

    /// Sends part `number`, counted from 1.
    pub fn put_part(&self, key: &str, upload: &str, number: u16, bytes: &[u8]) -> Result<Part> {
        let crc32c = checksum::crc32c(0, bytes);
        let action = || UploadPart::new(&self.bucket, Some(&self.credentials), key, number, upload);
        let headers = [(CHECKSUM, checksum_text(crc32c))];
        let answer = self.send("write", key, &action, &headers, Some(bytes))?;
        answer.check(self, "write", key)?;
        let etag = answer.header("etag");
        let etag = etag.ok_or_else(|| self.strange("write", key, "its answer has no ETag"))?;
        Ok(Part { etag, crc32c, was_compared: answer.compared(self, key, crc32c)? })
    }

    /// Completes a multipart upload with the parts that were sent.
    pub fn complete(&self, key: &str, upload: &str, parts: &[Part]) -> Result<()> {
        let body = completion(parts);
        let none = std::iter::empty::<&str>;
        let action = || {
            let credentials = Some(&self.credentials);
            CompleteMultipartUpload::new(&self.bucket, credentials, key, upload, none())
        };
        let answer = self.send("complete", key, &action, &[], Some(body.as_bytes()))?;
        answer.check(self, "complete", key)?;
        // This request may fail after its status was sent; the body then holds the error.
        let text = answer.text();
        match Failure::of(&text).code {
            Some(code) => Err(self.error("complete", key, code, Refusal::Passing)),
            None if answers::is_whole(&text, "CompleteMultipartUploadResult") => Ok(()),
            None => {
                let what = "the answer does not say whether it is complete";
                Err(self.error("complete", key, what.to_string(), Refusal::Passing))
            }
        }
    }

    /// Returns a request to the bucket itself: the object name is empty.
    fn ask_bucket(&self, query: &[(&'static str, &str)]) -> GetObject<'_> {
        let mut action = GetObject::new(&self.bucket, Some(&self.credentials), "");
        for (name, value) in query {
            action.query_mut().insert(*name, value.to_string());
        }
        action
    }

    /// Removes an object if it exists.
    pub fn remove(&self, key: &str) -> Result<()> {
        let action = || DeleteObject::new(&self.bucket, Some(&self.credentials), key);
        match self.send("remove", key, &action, &[], None)? {
            answer if answer.status == 404 => Ok(()),
            answer => answer.check(self, "remove", key),
        }
    }

    /// Returns the names of the objects that begin with `prefix`.
    pub fn list(&self, prefix: &str) -> Result<Vec<String>> {
        Ok(self.list_by(prefix, None)?.0)
    }

    /// Returns the common prefixes of the names that begin with `prefix`, up to and including the
    /// next slash.
    pub fn list_directories(&self, prefix: &str) -> Result<Vec<String>> {
        Ok(self.list_by(prefix, Some("/"))?.1)
    }

    fn list_by(&self, prefix: &str, delimiter: Option<&str>) -> Result<(Vec<String>, Vec<String>)> {
        let (mut names, mut directories, mut token) = (Vec::new(), Vec::new(), None::<String>);
        for _ in 0..PAGES_MAX {
            let mut query = vec![("list-type", "2"), ("prefix", prefix)];
            query.extend(delimiter.map(|delimiter| ("delimiter", delimiter)));
            query.extend(token.as_deref().map(|token| ("continuation-token", token)));
            let answer = self.send("list", prefix, &|| self.ask_bucket(&query), &[], None)?;
            answer.check(self, "list", prefix)?;
            let list = Names::of(&answer.text());
            let mut list =
                list.ok_or_else(|| self.strange("list", prefix, "its answer is not a list"))?;
            names.extend(list.keys());
            directories.extend(list.prefixes());
            match list.next() {
                None => return Ok((names, directories)),
                next if next == token => break,
                next => token = next,
            }
        }
        Err(self.strange("list", prefix, "its list has no end"))
    }

    /// Returns a small object, or None if there is none.
    pub fn get(&self, key: &str) -> Result<Option<Vec<u8>>> {
        let action = || GetObject::new(&self.bucket, Some(&self.credentials), key);
        let answer = self.send("read", key, &action, &[], None)?;
        if answer.is_nothing_there() {
            return Ok(None);
        }
        answer.check(self, "read", key)?;
        let crc32c = checksum::crc32c(0, &answer.body);
        match answer.whole().is_none_or(|stated| stated == crc32c) {
            true => Ok(Some(answer.body)),
            false => Err(self.error("read", key, "it is damaged".to_string(), Refusal::OfObject)),
        }
    }

    /// Reads an object from beginning to end and passes its bytes to `consume`. After a broken
    /// connection it resumes at the same offset. Returns None if there is no such object. Errors:
    /// those of the server and of `consume`; `Stopped`.
    pub fn read(
        &self,
        key: &str,
        consume: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<Option<Content>> {
        let mut so_far = SoFar::default();
        let (mut attempt, mut delay) = (1, RETRY_FIRST);
        loop {
            let before = so_far.content.bytes;
            match self.read_on(key, &mut so_far, consume) {
                Ok(is_there) => return Ok(is_there.then_some(so_far.content)),
                Err(error) if !error.passes() => return Err(error),
                Err(_) if so_far.content.bytes > before => (attempt, delay) = (1, RETRY_FIRST),
                Err(error) if attempt == ATTEMPTS_MAX => return Err(error),
                Err(_) => {}
            }
            if !(self.pause)(delay) {
                return Err(Error::Stopped);
            }
            (attempt, delay) = (attempt + 1, delay * 4);
        }
    }

    /// Reads on to the end. Returns false if there is no such object.
    fn read_on(
        &self,
        key: &str,
        so_far: &mut SoFar,
        consume: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<bool> {
        let from = so_far.content.bytes;
        let range = (from > 0).then(|| ("range", format!("bytes={from}-")));
        // Prevents reading on in another object that has taken the name meanwhile.
        let same = so_far.etag.clone().filter(|_| from > 0).map(|etag| ("if-match", etag));
        let headers: Vec<_> = range.into_iter().chain(same).collect();
        let mut action = GetObject::new(&self.bucket, Some(&self.credentials), key);
        let request = self.request(&mut action, &headers).body(());
        let request = request.map_err(|_| self.unsendable(key))?;
        let failed = |problem: String| self.error("read", key, problem, Refusal::Passing);
        let mut answer = self.agent.run(request).map_err(|error| failed(why(&error)))?;
        let wanted = if from == 0 { 200 } else { 206 };
        if answer.status() != wanted {
            let answer = Answer::read(answer).map_err(|error| failed(why(&error)))?;
            if answer.is_nothing_there() {
                return Ok(false);
            }
            answer.check(self, "read", key)?;
            let problem = format!("HTTP {}", answer.status);
            return Err(self.error("read", key, problem, Refusal::OfObject));
        }
        let etag = answer.headers().get("etag").and_then(|etag| etag.to_str().ok());
        so_far.etag = so_far.etag.take().or(etag.map(str::to_string));
        let mut reader = answer.body_mut().with_config().limit(u64::MAX).reader();
        let mut buffer = vec![0; READ_BYTES];
        loop {
            let length = reader.read(&mut buffer);
            let length = length.map_err(|error| failed(crate::model::error::why(&error)))?;
            if length == 0 {
                return Ok(true);
            }
            consume(&buffer[..length])?;
            let Content { bytes, crc32c } = so_far.content;
            let crc32c = checksum::crc32c(crc32c, &buffer[..length]);
            so_far.content = Content { bytes: bytes + length as u64, crc32c };
        }
    }

    /// Reads an object back and compares its length and checksum.
    pub fn compare(&self, key: &str, wanted: Content) -> Result<()> {
        let failed = |problem: String| Err(self.error("read back", key, problem, Refusal::Passing));
        match self.read(key, &mut |_| Ok(()))? {
            Some(found) if found == wanted => Ok(()),
            Some(found) => failed(format!("{found} instead of {wanted}")),
            None => failed("it is not there".to_string()),
        }
    }

    fn request<'b>(
        &self,
        action: &mut impl S3Action<'b>,
        headers: &[(&'static str, String)],
    ) -> ureq::http::request::Builder {
        for (name, value) in headers {
            action.headers_mut().insert(*name, value.clone());
        }
        let mut request =
            Request::builder().method(method_of(action)).uri(action.sign(VALID).as_str());
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        request
    }

    /// Sends a request, and repeats it if the server cannot serve it now. Errors: no response came;
    /// `Stopped`.
    fn send<'b, A: S3Action<'b>>(
        &self,
        what: &'static str,
        key: &str,
        action: &dyn Fn() -> A,
        headers: &[(&'static str, String)],
        body: Option<&[u8]>,
    ) -> Result<Answer> {
        let mut delay = RETRY_FIRST;
        for attempt in 1.. {
            let request = self.request(&mut action(), headers);
            let answer = match body {
                Some(body) => request.body(body).map(|request| self.agent.run(request)),
                None => request.body(()).map(|request| self.agent.run(request)),
            };
            let answer = answer.map_err(|_| self.unsendable(key))?;
            let answer = answer.and_then(Answer::read);
            let may_pass = match &answer {
                Ok(answer) => answer.may_pass(),
                Err(error) => refusal_of(error) == Refusal::Passing,
            };
            if !may_pass || attempt == ATTEMPTS_MAX {
                let failed = |error| self.error(what, key, why(&error), refusal_of(&error));
                return answer.map_err(failed);
            }
            if !(self.pause)(delay) {
                return Err(Error::Stopped);
            }
            delay *= 4;
        }
        Err(Error::Stopped)
    }

    fn unsendable(&self, key: &str) -> Error {
        let problem = "no request can be made of that name".to_string();
        self.error("name", key, problem, Refusal::OfObject)
    }

    fn strange(&self, action: &'static str, key: &str, problem: &str) -> Error {
        self.error(action, key, problem.to_string(), Refusal::Passing)
    }

    fn error(&self, action: &'static str, key: &str, problem: String, refusal: Refusal) -> Error {
        let url = self.bucket.base_url();
        let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
        let server = url.host_str().unwrap_or_default();
        let object = format!("s3://{}/{key} at {server}{port}", self.location.bucket);
        Error::Object { action, object, problem, refusal }
    }
}

/// Response of the server.
struct Answer {
    status: u16,
    headers: ureq::http::HeaderMap,
    body: Vec<u8>,
}

impl Answer {
    fn read(response: Response<Body>) -> Result<Answer, ureq::Error> {
        let (parts, mut body) = response.into_parts();
        let body = body.with_config().limit(ANSWER_BYTES_MAX).read_to_vec()?;
        Ok(Answer { status: parts.status.as_u16(), headers: parts.headers, body })
    }

    fn header(&self, name: &str) -> Option<String> {
        self.headers.get(name)?.to_str().ok().map(str::to_string)
    }

    /// Returns the checksum of the whole object, from the metadata written with it.
    fn whole(&self) -> Option<u32> {
        self.header(WHOLE).and_then(|text| u32::from_str_radix(&text, 16).ok())
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Whether the object does not exist, in a bucket that does.
    fn is_nothing_there(&self) -> bool {
        self.status == 404 && Failure::of(&self.text()).code.as_deref() != Some("NoSuchBucket")
    }

    /// Whether a repetition of the same request may succeed a little later.
    fn may_pass(&self) -> bool {
        const OF_THE_WAY: [&str; 3] =
            ["RequestTimeout", "BadDigest", "XAmzContentChecksumMismatch"];
        let code = Failure::of(&self.text()).code.unwrap_or_default();
        matches!(self.status, 408 | 429 | 500 | 502..=599) || OF_THE_WAY.contains(&code.as_str())
    }

    /// Returns what a refusal with `code` means for other requests.
    fn refusal(&self, code: &str) -> Refusal {
        const OF_THE_PARTS: [&str; 3] = ["NoSuchUpload", "InvalidPart", "InvalidPartOrder"];
        /// Codes about the caller or the bucket that come with the status of a bad request.
        const OF_WHO_ASKS: [&str; 7] = [
            "AuthorizationHeaderMalformed",
            "AuthorizationQueryParametersError",
            "ExpiredToken",
            "InvalidBucketName",
            "InvalidToken",
            "NoSuchBucket",
            "TokenRefreshRequired",
        ];
        match self.status {
            _ if self.may_pass() || code == "OperationAborted" => Refusal::Passing,
            _ if OF_THE_PARTS.contains(&code) => Refusal::OfParts,
            _ if OF_WHO_ASKS.contains(&code) || code.contains("Quota") => Refusal::OfServer,
            // The object is in cold storage, from which a restore takes hours.
            403 if code == "InvalidObjectState" => Refusal::OfObject,
            401 | 403 => Refusal::OfServer,
            400..500 => Refusal::OfObject,
            _ => Refusal::OfServer,
        }
    }

    /// Errors: the server refused the request.
    fn check(&self, client: &Client<'_>, action: &'static str, key: &str) -> Result<()> {
        if (200..300).contains(&self.status) {
            return Ok(());
        }
        let text = self.text();
        let failure = Failure::of(&text);
        let code = failure.code.unwrap_or_else(|| format!("HTTP {}", self.status));
        let message = failure.message.filter(|message| *message != code);
        let message = message.map(|message| format!(": {message}")).unwrap_or_default();
        let advice = match self.status {
            404 if code == "HTTP 404" => " (is the bucket there, and on this server?)",
            _ if code == "NoSuchBucket" => " (is the bucket there, and on this server?)",
            401 | 403 => " (are the credentials those of this bucket?)",
            301 | 307 => " (is the region the one of this bucket?)",
            _ => "",
        };
        Err(client.error(action, key, format!("{code}{message}{advice}"), self.refusal(&code)))
    }

    /// Whether the server compared the checksum of the bytes it received. Errors: it computed
    /// another one.
    fn compared(&self, client: &Client<'_>, key: &str, crc32c: u32) -> Result<bool> {
        match self.header(CHECKSUM) {
            Some(found) if found == checksum_text(crc32c) => Ok(true),
            Some(found) => {
                let problem =
                    format!("it took checksum {found} instead of {}", checksum_text(crc32c));
                Err(client.error("write", key, problem, Refusal::Passing))
            }
            None => Ok(false),
        }
    }
}

fn method_of<'a, A: S3Action<'a>>(_: &A) -> &'static str {
    match A::METHOD {
        Method::Head => "HEAD",
        Method::Get => "GET",
        Method::Post => "POST",
        Method::Put => "PUT",
        Method::Delete => "DELETE",
    }
}

/// Returns what a request without a response means for other requests.
fn refusal_of(error: &ureq::Error) -> Refusal {
    match error {
        ureq::Error::BodyExceedsLimit(_) => Refusal::OfObject,
        _ => Refusal::Passing,
    }
}

/// Returns why there was no response, without the URL.
fn why(error: &ureq::Error) -> String {
    match error {
        ureq::Error::Io(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
            format!("{} (does a server listen there?)", crate::model::error::why(error))
        }
        ureq::Error::Io(error) => crate::model::error::why(error),
        ureq::Error::BadUri(_) => "its address is not a URL".to_string(),
        ureq::Error::BodyExceedsLimit(limit) => format!("it has more than {limit} bytes"),
        error => error.to_string(),
    }
}

/// Returns the body that completes a multipart upload. A server that compares checksums requires
/// them again here.
fn completion(parts: &[Part]) -> String {
    let mut body =
        "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">".to_string();
    for (number, part) in (1..).zip(parts) {
        let (etag, sum) = (partial_escape(part.etag.as_str()), checksum_text(part.crc32c));
        let sum = match part.was_compared {
            true => format!("<ChecksumCRC32C>{sum}</ChecksumCRC32C>"),
            false => String::new(),
        };
        body += &format!("<Part><ETag>{etag}</ETag>{sum}<PartNumber>{number}</PartNumber></Part>");
    }
    body + "</CompleteMultipartUpload>"
}

/// Encodes a CRC32C as S3 does: big-endian bytes in base 64.
fn checksum_text(crc32c: u32) -> String {
    Base64::encode_string(&crc32c.to_be_bytes())
}

#[cfg(test)]
pub(super) mod tests;
