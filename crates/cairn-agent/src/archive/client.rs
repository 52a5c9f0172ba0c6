//! Requests to the server, each with its answer checked.
//!
//! Must stay true: bytes count as sent only when the server compared their checksum, or they were read back; nothing that is
//! said of a request shows its URL, which is signed; a request that cannot be carried out now is repeated a few times.

use super::{ArchivePolicy, Location, credentials};
use crate::error::{Error, Result};
use cairn_device::checksum;
use rusty_s3::actions::{
    AbortMultipartUpload, CompleteMultipartUpload, CreateMultipartUpload, DeleteObject, GetObject,
    HeadObject, ListObjectsV2, PutObject, S3Action, UploadPart,
};
use rusty_s3::{Bucket, Credentials, Method, UrlStyle};
use std::io::Read;
use std::time::Duration;
use ureq::http::{Request, Response};
use ureq::{Agent, Body};

/// How long a signed request may be used.
const VALID: Duration = Duration::from_secs(3600);
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);
/// How long the server may take to answer, and may take or give nothing.
const ANSWER_PATIENCE: Duration = Duration::from_secs(60);
/// A request is sent so many times.
const ATTEMPTS_MAX: u32 = 4;
/// Delay before the first repetition; it is four times as long each time.
const RETRY_FIRST: Duration = Duration::from_millis(200);
/// Longest answer that is read into memory.
const ANSWER_BYTES_MAX: u64 = 64 << 20;
/// Bytes read at a time when an object is read back.
const READ_BACK_BYTES: usize = 1 << 20;
/// CRC32C of the bytes of a request or an object, as S3 has it.
const CHECKSUM: &str = "x-amz-checksum-crc32c";
/// CRC32C of all of an object, eight digits.
const WHOLE: &str = "x-amz-meta-cairn-crc32c";

/// An object as the server has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its length.
    pub bytes: u64,
    /// The checksum of all of it that was written with it.
    pub crc32c: Option<u32>,
    /// The server compared the checksums of what it took.
    pub was_compared: bool,
}

/// A part of an object that was sent.
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

/// A bucket that can be used.
pub struct Client<'a> {
    agent: Agent,
    bucket: Bucket,
    credentials: Credentials,
    location: Location,
    /// Waits so long; false if the agent ends.
    pause: &'a dyn Fn(Duration) -> bool,
}

impl<'a> Client<'a> {
    /// Of what `policy` names. Errors: it names nothing that can be used, there are no credentials.
    pub fn new(policy: &ArchivePolicy, pause: &'a dyn Fn(Duration) -> bool) -> Result<Client<'a>> {
        let unusable = |problem: String| Error::Object {
            action: "use",
            object: policy.url.clone(),
            problem,
            passes: false,
        };
        let location = Location::parse(&policy.url).map_err(|what| unusable(what.to_string()))?;
        let amazon = || format!("https://s3.{}.amazonaws.com", policy.region);
        let style = match (&policy.endpoint, location.bucket.contains('.')) {
            (None, false) => UrlStyle::VirtualHost,
            // A server of one's own has one name; a certificate has none with further dots.
            _ => UrlStyle::Path,
        };
        let endpoint = policy.endpoint.clone().unwrap_or_else(amazon);
        let endpoint = endpoint.parse().map_err(|_| unusable(format!("{endpoint} is no URL")))?;
        let bucket = Bucket::new(endpoint, style, location.bucket.clone(), policy.region.clone())
            .map_err(|error| unusable(error.to_string()))?;
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_connect(Some(CONNECT_PATIENCE))
            .timeout_recv_response(Some(ANSWER_PATIENCE))
            .timeout_per_read(Some(ANSWER_PATIENCE))
            .timeout_per_write(Some(ANSWER_PATIENCE))
            .build();
        let credentials = credentials::find()?;
        Ok(Client { agent: config.new_agent(), bucket, credentials, location, pause })
    }

    /// Where objects lie.
    pub fn location(&self) -> &Location {
        &self.location
    }

    /// What the server has of this name.
    pub fn look(&self, key: &str) -> Result<Option<Found>> {
        let action = || HeadObject::new(&self.bucket, Some(&self.credentials), key);
        let headers = [("x-amz-checksum-mode", "ENABLED".to_string())];
        let answer = self.send("look at", key, &action, &headers, None)?;
        if answer.status == 404 {
            return Ok(None);
        }
        answer.check(self, "look at", key)?;
        let bytes = answer.header("content-length").and_then(|text| text.parse().ok());
        let crc32c = answer.header(WHOLE).and_then(|text| u32::from_str_radix(&text, 16).ok());
        let was_compared = answer.header(CHECKSUM).is_some();
        Ok(Some(Found { bytes: bytes.unwrap_or(u64::MAX), crc32c, was_compared }))
    }

    /// Sends an object whole; whether the server compared its checksum.
    pub fn put(&self, key: &str, bytes: &[u8], crc32c: u32) -> Result<bool> {
        let action = || PutObject::new(&self.bucket, Some(&self.credentials), key);
        let headers = [(CHECKSUM, checksum_text(crc32c)), (WHOLE, format!("{crc32c:08x}"))];
        let answer = self.send("write", key, &action, &headers, Some(bytes))?;
        answer.check(self, "write", key)?;
        answer.compared(self, key, crc32c)
    }

    /// Begins an object that comes in parts; its number.
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

    /// Sends a part, counted from 1.
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

    /// Makes an object of the parts that were sent.
    pub fn complete(&self, key: &str, upload: &str, parts: &[Part]) -> Result<()> {
        let body = completion(parts);
        let none = std::iter::empty::<&str>;
        let action = || {
            let credentials = Some(&self.credentials);
            CompleteMultipartUpload::new(&self.bucket, credentials, key, upload, none())
        };
        let answer = self.send("complete", key, &action, &[], Some(body.as_bytes()))?;
        answer.check(self, "complete", key)?;
        // This one may fail after it was answered.
        match tag(&answer.text(), "Code") {
            Some(code) => Err(self.error("complete", key, code, true)),
            None => Ok(()),
        }
    }

    /// Gives up an object that came in parts.
    pub fn abort(&self, key: &str, upload: &str) -> Result<()> {
        let credentials = Some(&self.credentials);
        let action = || AbortMultipartUpload::new(&self.bucket, credentials, key, upload);
        self.send("give up", key, &action, &[], None)?.check(self, "give up", key)
    }

    /// Gives up what somebody who died began and did not complete.
    pub fn abort_unfinished(&self, key: &str) -> Result<()> {
        let action = || {
            // The bucket itself is asked: it has the empty name.
            let mut list = GetObject::new(&self.bucket, Some(&self.credentials), "");
            list.query_mut().insert("uploads", "");
            list.query_mut().insert("prefix", key);
            list
        };
        let answer = self.send("look at", key, &action, &[], None)?;
        answer.check(self, "look at", key)?;
        for upload in unfinished(&answer.text(), key) {
            self.abort(key, &upload)?;
        }
        Ok(())
    }

    /// Removes an object, if it is there.
    pub fn remove(&self, key: &str) -> Result<()> {
        let action = || DeleteObject::new(&self.bucket, Some(&self.credentials), key);
        match self.send("remove", key, &action, &[], None)? {
            answer if answer.status == 404 => Ok(()),
            answer => answer.check(self, "remove", key),
        }
    }

    /// The names that begin like this.
    pub fn list(&self, prefix: &str) -> Result<Vec<String>> {
        let (mut names, mut token) = (Vec::new(), None::<String>);
        loop {
            let action = || {
                let mut list = ListObjectsV2::new(&self.bucket, Some(&self.credentials));
                list.with_prefix(prefix);
                token.iter().for_each(|token| list.with_continuation_token(token.clone()));
                list
            };
            let answer = self.send("list", prefix, &action, &[], None)?;
            answer.check(self, "list", prefix)?;
            let parsed = ListObjectsV2::parse_response(&answer.text())
                .map_err(|_| self.strange("list", prefix, "its answer is no list"))?;
            names.extend(parsed.contents.into_iter().map(|one| one.key));
            match parsed.next_continuation_token {
                Some(next) if !next.is_empty() => token = Some(next),
                _ => return Ok(names),
            }
        }
    }

    /// A small object.
    pub fn get(&self, key: &str) -> Result<Vec<u8>> {
        let action = || GetObject::new(&self.bucket, Some(&self.credentials), key);
        let answer = self.send("read", key, &action, &[], None)?;
        answer.check(self, "read", key)?;
        Ok(answer.body)
    }

    /// Reads an object back and compares it.
    pub fn compare(&self, key: &str, bytes: u64, crc32c: u32) -> Result<()> {
        let mut action = GetObject::new(&self.bucket, Some(&self.credentials), key);
        let request = self.request(&mut action, &[]).body(()).map_err(|_| self.unsendable(key))?;
        let failed = |problem: String| self.error("read back", key, problem, true);
        let mut answer = self.agent.run(request).map_err(|error| failed(why(&error)))?;
        if answer.status() != 200 {
            return Err(failed(format!("HTTP {}", answer.status().as_u16())));
        }
        let mut reader = answer.body_mut().with_config().limit(u64::MAX).reader();
        let mut buffer = vec![0; READ_BACK_BYTES];
        let (mut found_bytes, mut found) = (0, 0);
        loop {
            let length = reader.read(&mut buffer).map_err(|error| failed(error.to_string()))?;
            if length == 0 {
                break;
            }
            found = checksum::crc32c(found, &buffer[..length]);
            found_bytes += length as u64;
        }
        match (found_bytes, found) == (bytes, crc32c) {
            true => Ok(()),
            false => Err(failed(format!(
                "{found_bytes} bytes with checksum {found:08x} instead of {bytes} with {crc32c:08x}"
            ))),
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

    /// Sends a request, again if the server cannot take it now. Errors: no answer came; `Stopped`.
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
            let may_pass = answer.as_ref().map_or(true, Answer::may_pass);
            if !may_pass || attempt == ATTEMPTS_MAX {
                return answer.map_err(|error| self.error(what, key, why(&error), true));
            }
            if !(self.pause)(delay) {
                return Err(Error::Stopped);
            }
            delay *= 4;
        }
        Err(Error::Stopped)
    }

    fn unsendable(&self, key: &str) -> Error {
        self.error("name", key, "no request can be made of that name".to_string(), false)
    }

    fn strange(&self, action: &'static str, key: &str, problem: &str) -> Error {
        self.error(action, key, problem.to_string(), true)
    }

    fn error(&self, action: &'static str, key: &str, problem: String, passes: bool) -> Error {
        Error::Object {
            action,
            object: format!("s3://{}/{key}", self.location.bucket),
            problem,
            passes,
        }
    }
}

/// What the server said.
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

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Whether the same request may be answered otherwise a little later.
    fn may_pass(&self) -> bool {
        const OF_THE_WAY: [&str; 3] =
            ["RequestTimeout", "BadDigest", "XAmzContentChecksumMismatch"];
        let code = tag(&self.text(), "Code").unwrap_or_default();
        matches!(self.status, 408 | 429 | 500 | 502..=599) || OF_THE_WAY.contains(&code.as_str())
    }

    /// Errors: it was refused.
    fn check(&self, client: &Client<'_>, action: &'static str, key: &str) -> Result<()> {
        if (200..300).contains(&self.status) {
            return Ok(());
        }
        let text = self.text();
        let code = tag(&text, "Code").unwrap_or_else(|| format!("HTTP {}", self.status));
        let message = tag(&text, "Message").filter(|message| *message != code);
        let message = message.map(|message| format!(": {message}")).unwrap_or_default();
        let advice = match self.status {
            401 | 403 => " (are the credentials those of this bucket?)",
            301 | 307 => " (is the region the one of this bucket?)",
            _ => "",
        };
        Err(client.error(action, key, format!("{code}{message}{advice}"), self.may_pass()))
    }

    /// Whether the server compared the checksum of what it took. Errors: it has another one.
    fn compared(&self, client: &Client<'_>, key: &str, crc32c: u32) -> Result<bool> {
        match self.header(CHECKSUM) {
            Some(found) if found == checksum_text(crc32c) => Ok(true),
            Some(found) => {
                let problem =
                    format!("it took checksum {found} instead of {}", checksum_text(crc32c));
                Err(client.error("write", key, problem, true))
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

/// Why there was no answer, without the URL.
fn why(error: &ureq::Error) -> String {
    match error {
        ureq::Error::Io(error) => crate::error::why(error),
        ureq::Error::BadUri(_) => "its address is no URL".to_string(),
        error => error.to_string(),
    }
}

/// The text of the first element of this name.
fn tag(text: &str, name: &str) -> Option<String> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    rest.split_once("</").map(|(inner, _)| inner.to_string())
}

/// The numbers of the uploads of `key` in a list of those that are not completed.
fn unfinished(text: &str, key: &str) -> Vec<String> {
    let of_key = |upload: &&str| tag(upload, "Key").as_deref() == Some(escaped(key).as_str());
    let uploads = text.split("<Upload>").skip(1).filter(of_key);
    uploads.filter_map(|upload| tag(upload, "UploadId")).collect()
}

/// The body that makes an object of its parts. A server that compares checksums wants to hear them again.
fn completion(parts: &[Part]) -> String {
    let mut body =
        "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">".to_string();
    for (number, part) in (1..).zip(parts) {
        let (etag, sum) = (escaped(&part.etag), checksum_text(part.crc32c));
        let sum = match part.was_compared {
            true => format!("<ChecksumCRC32C>{sum}</ChecksumCRC32C>"),
            false => String::new(),
        };
        body += &format!("<Part><ETag>{etag}</ETag>{sum}<PartNumber>{number}</PartNumber></Part>");
    }
    body + "</CompleteMultipartUpload>"
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// A CRC32C as S3 writes it: its bytes, the highest first, in base 64.
fn checksum_text(crc32c: u32) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    // Four bytes are six digits, the last of which has four bits of nothing.
    let bits = u64::from(crc32c) << 4;
    let digit = |place: u32| char::from(DIGITS[(bits >> (6 * place) & 63) as usize]);
    (0..6).rev().map(digit).chain("==".chars()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_is_written_as_amazon_writes_it() {
        assert_eq!(checksum_text(0), "AAAAAA==");
        assert_eq!(checksum_text(u32::MAX), "/////w==");
        // CRC32C of "123456789" is e3069283.
        assert_eq!(checksum_text(checksum::crc32c(0, b"123456789")), "4waSgw==");
    }

    #[test]
    fn parts_are_named_in_order_with_the_checksums_that_were_compared() {
        let part = |etag: &str, was_compared| Part { etag: etag.into(), crc32c: 0, was_compared };
        let body = completion(&[part("\"a\"", true), part("<b>", false)]);
        let first = "<Part><ETag>\"a\"</ETag><ChecksumCRC32C>AAAAAA==</ChecksumCRC32C>\
                     <PartNumber>1</PartNumber></Part>";
        let second = "<Part><ETag>&lt;b&gt;</ETag><PartNumber>2</PartNumber></Part>";
        assert!(body.contains(&format!("{first}{second}")), "{body}");
        assert_eq!(
            tag("<Error><Code>SlowDown</Code></Error>", "Code").as_deref(),
            Some("SlowDown")
        );
        assert_eq!(tag("<Error/>", "Code"), None);
        let list = "<Upload><Key>a&amp;b</Key><UploadId>1</UploadId></Upload>\
                    <Upload><Key>a&amp;bc</Key><UploadId>2</UploadId></Upload>";
        assert_eq!(unfinished(list, "a&b"), ["1"]);
    }
}
