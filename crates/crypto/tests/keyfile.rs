//! Proves that key files made by `ssh-keygen` work, passphrase included; that writing and reading ours
//! restores them; and that each wrong file or passphrase is refused with a helpful message.

use holdfast_crypto::keyfile::{
    KeyFileError, format_private, format_public, parse_private, parse_public, public_half,
};
use holdfast_crypto::{Domain, SigningKey};

const PASSPHRASE: &str = "correct horse";

fn fixture(name: &str) -> String {
    std::fs::read_to_string(format!("{}/tests/fixtures/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

#[test]
fn keys_made_by_ssh_keygen_work() {
    for name in ["plain", "passphrase", "passphrase-gcm", "passphrase-chacha"] {
        let passphrase = (name != "plain").then_some(PASSPHRASE);
        let key = parse_private(&fixture(name), passphrase).unwrap_or_else(|error| panic!("{name}: {error}"));
        let public = parse_public(&fixture(&format!("{name}.pub"))).unwrap();
        assert_eq!(key.public(), public, "{name}");
        let signature = key.sign(Domain::Structure, b"text");
        assert!(public.verify(Domain::Structure, b"text", &signature), "{name}");
    }
}

#[test]
fn an_unneeded_passphrase_does_no_harm() {
    assert!(parse_private(&fixture("plain"), Some("whatever")).is_ok());
}

#[test]
fn a_passphrase_is_asked_for_and_checked() {
    for name in ["passphrase", "passphrase-gcm", "passphrase-chacha"] {
        assert_eq!(parse_private(&fixture(name), None).unwrap_err(), KeyFileError::PassphraseNeeded);
        for wrong in ["", "Correct horse", "correct horse "] {
            let error = parse_private(&fixture(name), Some(wrong)).unwrap_err();
            assert_eq!(error, KeyFileError::WrongPassphrase, "{name}, {wrong:?}");
        }
    }
}

#[test]
fn keys_of_other_algorithms_are_refused_with_a_reason() {
    for (name, algorithm) in
        [("rsa", "ssh-rsa"), ("rsa-passphrase", "ssh-rsa"), ("ecdsa", "of another algorithm")]
    {
        let error = parse_private(&fixture(name), None).unwrap_err();
        assert_eq!(error, KeyFileError::WrongAlgorithm(algorithm.into()), "{name}");
        let words = error.to_string();
        assert!(words.contains("ssh-keygen -t ed25519") && words.contains(algorithm), "{words}");
    }
    for name in ["rsa.pub", "ecdsa.pub"] {
        assert!(matches!(parse_public(&fixture(name)).unwrap_err(), KeyFileError::WrongAlgorithm(_)));
    }
}

#[test]
fn other_files_are_refused_with_a_reason() {
    let words = |text: &str| parse_private(text, None).unwrap_err().to_string();
    assert!(words(&fixture("plain.pub")).contains("public key"));
    assert!(words(&fixture("rsa-pem")).contains("ssh-keygen -p"));
    assert!(words("PuTTY-User-Key-File-3: ssh-ed25519\n").contains("PuTTYgen"));
    for text in ["", "hello", "-----BEGIN OPENSSH PRIVATE KEY-----\n-----END OPENSSH PRIVATE KEY-----\n"] {
        assert!(matches!(parse_private(text, None), Err(KeyFileError::Malformed(_))), "{text:?}");
    }
    assert!(matches!(parse_public("ssh-ed25519 AAAA"), Err(KeyFileError::Malformed(_))));
}

#[test]
fn a_damaged_file_is_refused_without_a_panic() {
    let text = fixture("plain");
    let key = parse_private(&text, None).unwrap().public();
    for index in 0..text.len() {
        for byte in [b'A', b'/', b'\n', b'-'] {
            let mut bytes = text.clone().into_bytes();
            bytes[index] = byte;
            let damaged = String::from_utf8(bytes).unwrap();
            // Damage may hit the comment. What is accepted must be the same key, or a completely different
            // one.
            if let Ok(other) = parse_private(&damaged, None) {
                let signature = other.sign(Domain::Structure, b"text");
                assert!(other.public().verify(Domain::Structure, b"text", &signature));
                let _ = other.public() == key;
            }
        }
        let _ = parse_private(&text[..index], None);
    }
}

#[test]
fn our_files_come_back_as_they_were() {
    let key = SigningKey::from_seed(&[9; 32]);
    let plain = format_private(&key, "a comment", None).unwrap();
    assert_eq!(parse_private(&plain, None).unwrap().public(), key.public());

    let sealed = format_private(&key, "a comment", Some((PASSPHRASE, [3; 16], 77))).unwrap();
    assert!(!sealed.contains(plain.lines().nth(2).unwrap()));
    assert_eq!(parse_private(&sealed, None).unwrap_err(), KeyFileError::PassphraseNeeded);
    assert_eq!(parse_private(&sealed, Some("wrong")).unwrap_err(), KeyFileError::WrongPassphrase);
    assert_eq!(*parse_private(&sealed, Some(PASSPHRASE)).unwrap().seed(), [9; 32]);
    assert_eq!(public_half(&sealed), Ok(key.public()), "it needs no passphrase");

    let line = format_public(&key.public(), "me@laptop");
    assert!(line.starts_with("ssh-ed25519 AAAA") && line.ends_with(" me@laptop"));
    assert_eq!(parse_public(&line).unwrap(), key.public());
    assert_eq!(parse_public(&format!("  {line}\n")).unwrap(), key.public());
}

#[test]
fn ssh_keygen_reads_our_files() {
    let directory = std::env::temp_dir().join(format!("holdfast-keyfile-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let key = SigningKey::from_seed(&[9; 32]);
    let mut answers = Vec::new();
    for (name, passphrase, sealing) in
        [("plain", "", None), ("sealed", PASSPHRASE, Some((PASSPHRASE, [3; 16], 77)))]
    {
        let path = directory.join(name);
        std::fs::write(&path, format_private(&key, "c", sealing).unwrap().as_bytes()).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let output =
            std::process::Command::new("ssh-keygen").args(["-y", "-P", passphrase, "-f"]).arg(&path).output();
        // Machines without OpenSSH have the fixtures above as proof of the format.
        if let Ok(output) = output {
            answers.push(String::from_utf8(output.stdout).unwrap());
        }
    }
    std::fs::remove_dir_all(&directory).unwrap();
    for answer in answers {
        assert_eq!(parse_public(&answer).unwrap(), key.public());
    }
}
