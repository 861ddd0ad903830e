//! The subjects of rules of a shared file system, as people write them: programs by path, hash or package.

use holdfast_crypto::{Digest, PublicKey};
use holdfast_daemon::keys;
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_program_identity::hashes::{self, Hashed};
use holdfast_program_identity::manifest;
use holdfast_program_identity::rules::{Rule, RuleText, Subject, parse};
use std::fs::File;
use std::path::Path;

/// Hashes a program.
///
/// # Errors
/// The program cannot be read.
pub fn hash(path: &Path) -> Outcome<Hashed> {
    let failed = |error: std::io::Error| Failure::new(Exit::NoInput, format!("{}: {error}", path.display()));
    let mut hashed = File::open(path).and_then(|mut file| hashes::digest_of(&mut file)).map_err(failed)?;
    let real = path.canonicalize().map_err(failed)?;
    hashed.interpreter = hashed.interpreter.or_else(|| hashes::interpreter_by_name(&real.to_string_lossy()));
    Ok(hashed)
}

/// The subject that a text names; for a program on this machine, also its hash and path.
///
/// # Errors
/// The text names no subject, or a file that cannot be read.
pub fn who(text: &str) -> Outcome<(Subject, Option<Hashed>, String)> {
    let wrong = |what: &str| {
        Failure::new(Exit::Usage, format!("'{text}' {what}"))
            .hint("name programs as prog:PATH, hash:HEX, pkg:KEYFILE/NAME or any")
    };
    if text == "any" {
        return Ok((Subject::Anybody, None, String::new()));
    }
    match text.split_once(':') {
        Some(("prog", path)) => {
            let path = Path::new(path);
            let hashed = hash(path)?;
            let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
            let most = holdfast_program_identity::rules::TEXT_BYTES_MAX / char::MAX.len_utf8();
            let hint = real.to_string_lossy().chars().take(most).collect();
            Ok((Subject::Program(hashed.digest), Some(hashed), hint))
        }
        Some(("hash", hex)) => {
            let digest = Digest::from_hex(hex).ok_or_else(|| wrong("is no hash: 64 hexadecimal digits"))?;
            Ok((Subject::Program(digest), None, String::new()))
        }
        Some(("pkg", package)) => {
            let (key, name) = package.rsplit_once('/').ok_or_else(|| wrong("names no package"))?;
            let key = keys::read_public(key)?.0;
            Ok((Subject::Package { key, name: name.to_owned() }, None, String::new()))
        }
        _ => Err(wrong("names nobody")),
    }
}

/// Whether an executable is the one that a text names.
pub fn is_meant(who: &Subject, digest: &Digest) -> bool {
    match who {
        Subject::Program(wanted) => wanted == digest,
        Subject::Package { key, name } => {
            manifest::lists(&manifest::directories(), &PublicKey(*key), name, digest)
        }
        Subject::Anybody => true,
    }
}

/// The failure that an interpreter was named without `+interpreter`.
pub fn interpreter_meant(text: &str, why: &str) -> Failure {
    let message = format!("{text}: it is an interpreter ({why}), which runs whatever it is given");
    Failure::new(Exit::NotAllowed, message)
        .hint("to let everything in that it runs, write +interpreter behind the rights")
}

/// The rule of a shared file system that a text states. An interpreter needs `+interpreter`.
///
/// # Errors
/// The text is no rule, or names people, to whom such rules do not apply.
pub fn rule(text: &str) -> Outcome<Rule> {
    let parsed = parse(text).map_err(|why| Failure::new(Exit::Usage, why))?;
    if let Some(("user" | "group" | "key" | "such", _)) = parsed.who.split_once(':') {
        let message = format!("'{}': rules of a shared file system bind programs, not people", parsed.who);
        return Err(Failure::new(Exit::Usage, message)
            .hint("who of its members may read a file, its mode and owner say (chmod, chown); volumes have ACLs of users"));
    }
    let (named, hashed, hint) = who(parsed.who)?;
    if let (Some(why), false) = (hashed.and_then(|hashed| hashed.interpreter), parsed.interpreter) {
        return Err(interpreter_meant(parsed.who, why));
    }
    let RuleText { rights, interpreter, generated, plain, .. } = parsed;
    Ok(Rule { who: named, rights, interpreter, generated, plain, hint })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: rules of a shared file system cannot name people.
    #[test]
    fn people_are_no_programs() {
        for who in ["user:bob", "group:staff", "key:abc"] {
            let refused = rule(&format!("{who}=r")).expect_err("it names people");
            assert!(refused.message.contains("not people"), "{who}: {}", refused.message);
        }
    }
}
