//! Secrets in the format of `nvme gen-dhchap-key`, and the files that hold them.

use super::*;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

/// The bytes 0, 1, 2, … as secrets. Computed with Python.
const PLAIN: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
const OF_SHA_256: &str = "DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
const OF_SHA_384: &str =
    "DHHC-1:02:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vcSEgBQ==:";
const OF_SHA_512: &str = "DHHC-1:03:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vMDEyMzQ1Njc4OTo7PD0+P4zODhA=:";
const PLAIN_LONG: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vMDEyMzQ1Njc4OTo7PD0+P4zODhA=:";

fn name() -> Nqn {
    Nqn::new("nqn.2026-11.io.cairn:host").expect("a name")
}

fn why(error: Error) -> &'static str {
    match error {
        Error::Unauthenticated { why } => why,
        other => panic!("{other}"),
    }
}

#[test]
fn generated_secrets_can_be_read_and_differ() {
    let [one, other] = [(); 2].map(|()| Secret::generate().unwrap());
    assert!(one.len() == OF_SHA_256.len() && one.starts_with(b"DHHC-1:01:"));
    let [one, other] = [one, other].map(|text| Secret::parse(&text).unwrap().key_of(&name()));
    assert_ne!(one[..], other[..]);
    let mut text = [0; 48];
    let bytes: Vec<u8> = (0..32).chain([0x8a, 0x7e, 0x26, 0x91]).collect();
    Base64::encode(&bytes, &mut text).expect("it has room");
    assert_eq!(text, OF_SHA_256.as_bytes()[10..58]);
}

#[test]
fn secrets_are_transformed_as_they_say() {
    let bytes: Vec<u8> = (0..64).collect();
    assert_eq!(Secret::parse(PLAIN.as_bytes()).unwrap().key_of(&name())[..], bytes[..32]);
    assert_eq!(Secret::parse(PLAIN_LONG.as_bytes()).unwrap().key_of(&name())[..], bytes[..]);
    // HMACs of the name and "NVMe-over-Fabrics", computed with Python.
    let expected = [
        (OF_SHA_256, 0xe5425b197797f425),
        (OF_SHA_384, 0xf652cfdb95474876),
        (OF_SHA_512, 0x543f273037aa0b5e),
    ];
    for (text, start) in expected {
        let key = Secret::parse(text.as_bytes()).unwrap().key_of(&name());
        assert_eq!(key[..8], u64::to_be_bytes(start), "{text}");
    }
}

#[test]
fn texts_that_are_no_secrets_are_refused_without_showing_them() {
    let wrong: [(String, &str); 9] = [
        (String::new(), "is not one"),
        ("geheim".into(), "is not one"),
        (PLAIN.replace("DHHC-1", "DHHC-2"), "is not one"),
        (PLAIN.replace(":00:", ":04:"), "is not one"),
        (PLAIN.trim_end_matches(':').into(), "is not one"),
        (PLAIN.replace("AAEC", "AA*C"), "is not one"),
        (PLAIN.replace("AAEC", "ABEC"), "mistyped"),
        (PLAIN.replace(":00:", ":02:"), "another length"),
        ("DHHC-1:00:AAECAw==:".into(), "another length"),
    ];
    for (text, problem) in wrong {
        let error = why(Secret::parse(text.as_bytes()).unwrap_err());
        assert!(error.contains(problem), "{text}: {error}");
    }
    let secrets = format!("{}\n{PLAIN}\n{OF_SHA_256}\n", name());
    let secrets = format!("{:?}", Secrets::parse(secrets.as_bytes()).unwrap());
    assert!(!secrets.contains("AAEC") && secrets.contains("(hidden)"), "{secrets}");
}

#[test]
fn files_name_the_host_and_hold_one_secret_or_two() {
    let text = format!("# ours\n\n{}\n {PLAIN} \n", name());
    let secrets = Secrets::parse(text.as_bytes()).unwrap();
    assert!(secrets.name == name() && secrets.controller.is_none());
    let text = format!("{}\n{PLAIN}\n{OF_SHA_256}\n", name());
    assert!(Secrets::parse(text.as_bytes()).unwrap().controller.is_some());
    for (rest, problem) in [("", "no secret"), ("x", "is not one"), (&*text, "is not one")] {
        let text = format!("{}\n{rest}", name());
        let error = why(Secrets::parse(text.as_bytes()).unwrap_err());
        assert!(error.contains(problem), "{text}: {error}");
    }
    let text = format!("{text}{PLAIN}");
    assert!(why(Secrets::parse(text.as_bytes()).unwrap_err()).contains("more than two"));
}

#[test]
fn targets_know_their_hosts_by_name() {
    let text = format!("{} {PLAIN}\nnqn.other\t{PLAIN}  {OF_SHA_384}\n", name());
    let hosts = HostSecrets::parse(text.as_bytes()).unwrap();
    assert!(hosts.of(&name()).unwrap().controller.is_none());
    assert!(hosts.of(&Nqn::new("nqn.other").unwrap()).unwrap().controller.is_some());
    assert!(hosts.of(&Nqn::new("nqn.stranger").unwrap()).is_none());
    for text in ["", "nqn.x", &format!("{PLAIN} nqn.x"), &format!("nqn.x {PLAIN} {PLAIN} x")] {
        assert!(
            why(HostSecrets::parse(text.as_bytes()).unwrap_err()).contains("HOSTNQN"),
            "{text}"
        );
    }
}

#[test]
fn file_that_others_may_read_is_refused_and_says_what_to_do() {
    let path = std::env::temp_dir().join(format!("cairn-secret-{}", std::process::id()));
    fs::write(&path, format!("{}\n{PLAIN}\n", name())).unwrap();
    let source = SecretSource::parse(path.to_str().unwrap()).unwrap();
    let read_as = |mode| {
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        source.read()
    };
    for mode in [0o644, 0o640, 0o604, 0o620, 0o601] {
        assert!(why(read_as(mode).unwrap_err()).contains("chmod 600"), "{mode:o}");
    }
    for mode in [0o600, 0o400] {
        assert_eq!(read_as(mode).unwrap().name, name());
    }
    fs::remove_file(&path).unwrap();
    assert!(matches!(source.read(), Err(Error::System { errno: Errno(libc::ENOENT), .. })));
    let directory = SecretSource::parse("/tmp/.").unwrap();
    assert!(why(directory.read().unwrap_err()).contains("in a regular file"));
    let variable = SecretSource::parse("env:CAIRN_NO_SUCH_SECRET").unwrap();
    assert!(why(variable.read().unwrap_err()).contains("not set"));
}
