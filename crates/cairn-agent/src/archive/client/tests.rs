//! Requests to a server in trouble, and the texts of their errors.

use super::answers::Uploads;
use super::*;
use crate::archive::object_store::{Mood, ObjectStore, Trouble};
use cairn_job::checkpoint::policy::Every;
use std::net::TcpListener;
use std::sync::Mutex;

/// Returns a policy for the bucket of these tests on a server.
pub fn policy(url: String) -> ArchivePolicy {
    let (url, endpoint) = ("s3://runs/deep".to_string(), Some(url));
    ArchivePolicy { url, endpoint, region: "us-east-1".into(), every: Every::default() }
}

/// Returns a client that does not pause between attempts.
pub fn client(server: String) -> Client<'static> {
    within(server, ANSWER_PATIENCE)
}

fn within(server: String, patience: Duration) -> Client<'static> {
    let credentials = Credentials::new("key-of-the-test", "secret-of-the-test");
    Client::with(&policy(server), credentials, patience, &|_| true).expect("can be used")
}

#[test]
fn reading_goes_on_where_the_connection_broke() {
    let server = ObjectStore::start(&[Trouble::CutOff; 5]);
    let client = client(server.url());
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|place| (place / 7) as u8).collect();
    let crc32c = checksum::crc32c(0, &bytes);
    client.put("x", &bytes, crc32c).expect("is written");
    let mut read = Vec::new();
    let found = client.read("x", &mut |part| {
        read.extend_from_slice(part);
        Ok(())
    });
    let content = Content { bytes: bytes.len() as u64, crc32c };
    assert_eq!(found.expect("is read"), Some(content));
    assert!(read == bytes && server.has_had_them(), "{} bytes", read.len());
    assert_eq!(client.read("y", &mut |_| Ok(())).expect("is answered"), None);
}

#[test]
fn object_that_is_replaced_while_it_is_read_is_not_read_on() {
    let server = ObjectStore::start(&[Trouble::CutOff]);
    let client = client(server.url());
    let put = |byte: u8| {
        let bytes = vec![byte; 3_000_000];
        client.put("x", &bytes, checksum::crc32c(0, &bytes)).expect("is written")
    };
    put(1);
    let is_first = Mutex::new(true);
    let read = client.read("x", &mut |_| {
        if std::mem::take(&mut *is_first.lock().expect("one thread")) {
            put(2);
        }
        Ok(())
    });
    let error = read.expect_err("it is another one").to_string();
    assert!(error.contains("PreconditionFailed"), "{error}");
}

#[test]
fn server_that_says_nothing_or_is_away_is_given_up_without_a_word_of_who_asked() {
    let mute = TcpListener::bind("127.0.0.1:0").expect("a port of this machine");
    let mute = format!("http://{}", mute.local_addr().expect("has an address"));
    let away = ObjectStore::start(&[]);
    away.set_mood(Mood::Availability);
    let nowhere = "http://127.0.0.1:1".to_string();
    for server in [mute, away.url(), nowhere] {
        let client = within(server, Duration::from_millis(50));
        let error = client.list("").expect_err("there is no answer");
        assert!(error.passes(), "{error}");
        let text = format!("{error} {error:?}");
        assert!(!text.contains("-of-the-test") && !text.contains("X-Amz"), "{text}");
    }
}

#[test]
fn answer_that_got_lost_after_the_object_was_made_leaves_it_whole() {
    let server = ObjectStore::start(&[Trouble::Unanswered]);
    let client = client(server.url());
    let bytes = vec![7; 100];
    let crc32c = checksum::crc32c(0, &bytes);
    let upload = client.begin("x", crc32c).expect("is begun");
    let part = client.put_part("x", &upload, 1, &bytes).expect("is written");
    client.complete("x", &upload, &[part]).expect_err("nobody said that it is there");
    client.compare("x", Content { bytes: 100, crc32c }).expect("it is");
    assert_eq!(server.unfinished(), 0);
}

#[test]
fn checksum_is_written_as_amazon_writes_it() {
    assert_eq!(checksum_text(0), "AAAAAA==");
    assert_eq!(checksum_text(u32::MAX), "/////w==");
    // CRC32C of "123456789" is e3069283.
    assert_eq!(checksum_text(checksum::crc32c(0, b"123456789")), "4waSgw==");
}

fn parts(text: &str) -> Vec<(u16, Listed)> {
    let list = answers::Parts::of(text).expect("it is a list");
    list.part.into_iter().filter_map(unfinished::listed).collect()
}

#[test]
fn parts_are_named_in_order_with_the_checksums_that_were_compared() {
    let part = |etag: &str, was_compared| Part { etag: etag.into(), crc32c: 0, was_compared };
    let body = completion(&[part("\"a\"", true), part("<b>", false)]);
    let first = "<Part><ETag>\"a\"</ETag><ChecksumCRC32C>AAAAAA==</ChecksumCRC32C>\
                 <PartNumber>1</PartNumber></Part>";
    let second = "<Part><ETag>&lt;b&gt;</ETag><PartNumber>2</PartNumber></Part>";
    assert!(body.contains(&format!("{first}{second}")), "{body}");
    let code = |text: &str| Failure::of(text).code;
    assert_eq!(code("<Error><Code>SlowDown</Code></Error>").as_deref(), Some("SlowDown"));
    assert_eq!((code("<Error/>"), code("<Error><Code>")), (None, None));
    for odd in
        ["<Message>x & y</Message></Error>", "<Message>x <b>y</b></Message>", "<Code>B</Code>", ""]
    {
        assert_eq!(code(&format!("<Error><Code> A </Code>{odd}")).as_deref(), Some("A"), "{odd}");
    }
    let is_whole = |text: &str| answers::is_whole(text, "CompleteMultipartUploadResult");
    assert!(is_whole("<CompleteMultipartUploadResult/>"));
    assert!(is_whole(
        "<?xml version='1.0'?>\n<CompleteMultipartUploadResult xmlns='x'><ETag>1</ETag>\
         </CompleteMultipartUploadResult>"
    ));
    for text in ["<CompleteMultipartUploadResult><ETag>1", "", "<Error/>", "done"] {
        assert!(!is_whole(text), "{text}");
    }
    let list = "<ListMultipartUploadsResult><Upload><Key>a&amp;b</Key><UploadId>1</UploadId></Upload>\
                <Upload><Key>a&amp;lt;c</Key><UploadId>2</UploadId></Upload>\
                <Upload><Key>alone</Key></Upload></ListMultipartUploadsResult>";
    let found = [("a&b".to_string(), "1".to_string()), ("a&lt;c".to_string(), "2".to_string())];
    assert_eq!(Uploads::of(list).map(|mut list| list.pairs()), Some(found.to_vec()));
    let cut_off = &list[..list.len() - 8];
    assert!(Uploads::of(cut_off).is_none());
    let mixed = "<ListBucketResult><Contents><Key>a</Key></Contents><CommonPrefixes><Prefix>b/</Prefix></CommonPrefixes>\
                 <Contents><Size>1</Size><Key>c</Key></Contents></ListBucketResult>";
    let mut names = Names::of(mixed).expect("it is a list");
    assert_eq!(names.keys().collect::<Vec<_>>(), ["a", "c"]);
    assert_eq!(
        (names.prefixes().collect::<Vec<_>>(), names.next()),
        (vec!["b/".to_string()], None)
    );
    assert!(Names::of("<html>not found</html>").is_none() && Names::of(&mixed[..60]).is_none());
}

#[test]
fn listed_part_is_of_bytes_that_have_its_checksum_or_its_md5() {
    let listed = |more: &str| {
        let part = format!("<PartNumber>7</PartNumber><Size>9</Size>{more}");
        let text = format!("<ListPartsResult><Part>{part}</Part></ListPartsResult>");
        parts(&text).pop().map(|(number, listed)| (number, listed.of(b"123456789")))
    };
    let was_compared =
        |more: &str| listed(more).map(|(_, part)| part.map(|part| part.was_compared));
    let md5 = "<ETag>&quot;25f9e794323b453885f5181f1b624d0b&quot;</ETag>";
    assert_eq!(was_compared(md5), Some(Some(false)));
    // The ETag of an encrypted part is not an MD5 of its bytes.
    let etag = "<ETag>35f9e794323b453885f5181f1b624d0b</ETag>";
    assert_eq!(was_compared(etag), Some(None));
    let sum = |text| format!("{etag}<ChecksumCRC32C>{text}</ChecksumCRC32C>");
    assert_eq!(was_compared(&sum("4waSgw==")), Some(Some(true)));
    assert_eq!(was_compared(&sum("AAAAAA==")), Some(None));
    assert_eq!(listed(&sum("4waSgw==")).map(|(number, _)| number), Some(7));
    assert_eq!(was_compared(""), None, "s3s-fs says no more");
    let long = "<ListPartsResult><Part><PartNumber>7</PartNumber><Size>8</Size><ETag>x</ETag></Part></ListPartsResult>";
    assert!(parts(long)[0].1.of(b"123456789").is_none());
}

#[test]
fn lists_that_come_in_several_answers_are_read_to_their_end_and_endless_ones_are_not() {
    let server = ObjectStore::start(&[]);
    let client = client(server.url());
    let keys: Vec<String> = (0..5).map(|number| format!("jobs/{number}/x")).collect();
    for key in &keys {
        client.put(key, b"x", checksum::crc32c(0, b"x")).expect("is written");
        client.begin(key, 0).expect("is begun");
    }
    assert_eq!(client.list("jobs/").expect("is listed"), keys);
    let directories = client.list_directories("jobs/").expect("is listed");
    assert_eq!(directories, (0..5).map(|number| format!("jobs/{number}/")).collect::<Vec<_>>());
    client.abort_unfinished("jobs/", |_| Ok(true)).expect("is given up");
    assert_eq!(server.unfinished(), 0);
    server.set_mood(Mood::Endless);
    let error = client.list("jobs/").expect_err("it never ends").to_string();
    assert!(error.contains("its list has no end"), "{error}");
    client.abort_unfinished("jobs/", |_| Ok(true)).expect("there is nothing of ours");
}

#[test]
fn object_that_is_too_long_for_its_purpose_is_neither_written_nor_waited_for() {
    let server = ObjectStore::start(&[]);
    let client = client(server.url());
    let long = vec![7; ANSWER_BYTES_MAX as usize];
    let error = client.put_small("x", &long).expect_err("nobody could read it");
    assert!(error.is_of_object() && server.names().is_empty(), "{error}");
    client.put("x", &long, checksum::crc32c(0, &long)).expect("is written");
    let error = client.get("x").expect_err("it is too long");
    assert!(error.is_of_object() && error.to_string().contains("more than"), "{error}");
    client.put_small("y", b"short").expect("is written");
    assert_eq!(client.get("y").expect("is read").as_deref(), Some(&b"short"[..]));
}

#[test]
fn refusal_is_of_the_object_unless_it_is_of_who_asks_or_of_the_moment() {
    let refusal = |status, code: &str| {
        let body = format!("<Error><Code>{code}</Code></Error>").into_bytes();
        Answer { status, headers: Default::default(), body }.refusal(code)
    };
    for (status, code, expected) in [
        (400, "KeyTooLongError", Refusal::OfObject),
        (400, "EntityTooLarge", Refusal::OfObject),
        (403, "InvalidObjectState", Refusal::OfObject),
        (404, "NoSuchUpload", Refusal::OfParts),
        (503, "SlowDown", Refusal::Passing),
        (400, "ExpiredToken", Refusal::OfServer),
        (400, "XMinioAdminBucketQuotaExceeded", Refusal::OfServer),
        (403, "AccessDenied", Refusal::OfServer),
        (404, "NoSuchBucket", Refusal::OfServer),
        (301, "PermanentRedirect", Refusal::OfServer),
        (501, "NotImplemented", Refusal::OfServer),
    ] {
        assert_eq!(refusal(status, code), expected, "{code}");
    }
}
