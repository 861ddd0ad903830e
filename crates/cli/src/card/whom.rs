//! Principals on volumes, as people write them. The texts have the form that rules of a shared file system
//! have (`crate::programs::subjects`), and can also name people. `hash:` is the digest of a program's file,
//! as `holdfast program show` prints it, so a principal is displayed as it was written. Conditions that a
//! rule tolerates (`+interpreter`, `+jit`, `+plain`) are part of the principal.

use crate::programs::subjects::{hash, interpreter_meant};
use holdfast_access::{
    Access, Condition, Conditions, KeyName, Name, Predicate, Principal, ProgramHash, Term,
};
use holdfast_crypto::Digest;
use holdfast_daemon::keys;
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_program_identity::rules::{Rights, Rule, RuleSet, RuleText, Subject, parse};
use holdfast_stack::session_requests::volume_name;
use std::path::Path;

fn usage(why: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::Usage, why)
}

/// Words that may follow a program in an ACL entry (`prog:PATH=r+plain`) or a session (`prog:PATH+plain`),
/// each with the condition of the program's process that it tolerates.
const FLAGS: [(&str, Condition); 3] =
    [("interpreter", Condition::Interpreter), ("jit", Condition::LooseCode), ("plain", Condition::Traceable)];

/// The conditions that an entry tolerates; `is_written` returns which of [`FLAGS`] it has.
fn tolerated(is_written: impl Fn(&str) -> bool) -> Conditions {
    let written = FLAGS.into_iter().filter(|(flag, _)| is_written(flag));
    written.fold(Conditions::CLEAN, |tolerated, (_, condition)| tolerated.with(condition))
}

fn program(term: Term, tolerated: Conditions) -> Principal {
    Principal::Such(Predicate::new(vec![term], tolerated).expect("one term is a tree"))
}

/// Parses an entry of an ACL on a volume.
///
/// # Errors
/// The text is no entry, names a file that cannot be read, or names an interpreter without `+interpreter`.
pub fn entry(text: &str) -> Outcome<(Principal, Access)> {
    let RuleText { who, rights, interpreter, generated, plain } = parse(text).map_err(usage)?;
    let access = if rights == Rights::Read { Access::Read } else { Access::ReadWrite };
    let tolerated = tolerated(|flag| match flag {
        "interpreter" => interpreter,
        "jit" => generated,
        _ => plain,
    });
    Ok((principal(who, tolerated)?, access))
}

/// The principal that a text names on a volume; a program may be followed by `+interpreter`, `+jit` and
/// `+plain`.
///
/// # Errors
/// As for [`entry`].
pub fn flagged(text: &str) -> Outcome<Principal> {
    // In a key of OpenSSH or a φ, `+` is part of the name.
    let flags = text.split_once('+').map(|(who, flags)| (who, flags.split('+').collect::<Vec<_>>()));
    let is_flag = |word: &&str| FLAGS.iter().any(|(flag, _)| flag == word);
    match (principal(text, Conditions::CLEAN), flags) {
        (Err(_), Some((who, flags))) if flags.iter().all(is_flag) => {
            principal(who, tolerated(|flag| flags.contains(&flag)))
        }
        (found, _) => found,
    }
}

/// The principal that a text names on a volume.
///
/// # Errors
/// As for [`entry`].
pub fn principal(text: &str, tolerated: Conditions) -> Outcome<Principal> {
    let wrong = || {
        usage(format!("'{text}' names nobody")).hint(
            "name users as user:NAME, groups as group:NAME, keys as key:KEYFILE, programs as prog:PATH, hash:HEX or \
             pkg:KEYFILE/NAME, or processes by what they run as such:φ",
        )
    };
    let (kind, rest) = text.split_once(':').ok_or_else(wrong)?;
    let is_program = matches!(kind, "prog" | "hash" | "pkg");
    if !is_program && tolerated != Conditions::CLEAN {
        return Err(usage(format!("'{text}': +interpreter, +jit and +plain are for programs")));
    }
    match kind {
        "prog" => {
            let hashed = hash(Path::new(rest))?;
            if let (Some(why), false) = (hashed.interpreter, tolerated.contains(Condition::Interpreter)) {
                return Err(interpreter_meant(text, why));
            }
            Ok(program(Term::Executable(hashed.digest), tolerated))
        }
        "hash" => {
            let digest = Digest::from_hex(rest).ok_or_else(wrong)?;
            Ok(program(Term::Executable(digest), tolerated))
        }
        "pkg" => {
            let (key, name) = rest.rsplit_once('/').ok_or_else(wrong)?;
            let (key, name) = (keys::read_public(key)?, Name::new(name).map_err(usage)?);
            let package = KeyName { key, name };
            Ok(match tolerated {
                Conditions::CLEAN => Principal::Package(package),
                tolerated => program(Term::Package(package), tolerated),
            })
        }
        "hashgroup" => Ok(Principal::Program(ProgramHash(Digest::from_hex(rest).ok_or_else(wrong)?))),
        "key" => text.parse().or_else(|_| Ok(Principal::Key(keys::read_public(rest)?))),
        "any" => Err(wrong()),
        _ => text.parse().map_err(|_| wrong()),
    }
}

/// Replaces a key by its name on a volume: a key itself stands for nobody there, but only this key can give
/// out that name.
pub fn on_volume(principal: Principal, volume: &[u8; 16]) -> Principal {
    match principal {
        Principal::Key(key) => {
            let name = Name::new(&volume_name(volume)).expect("hexadecimal digits are a name");
            Principal::Named(KeyName { key, name })
        }
        other => other,
    }
}

/// A principal as people write it, and the text that follows the rights.
fn parts(principal: &Principal) -> (String, String) {
    let Principal::Such(predicate) = principal else {
        return match principal {
            Principal::Program(hash) => (format!("hashgroup:{hash}"), String::new()),
            other => (other.to_string(), String::new()),
        };
    };
    let tolerates = predicate.tolerates();
    let is_known = tolerates.within(tolerated(|_| true));
    let written = FLAGS.into_iter().filter(|(_, condition)| tolerates.contains(*condition));
    let suffix: String = written.map(|(flag, _)| format!("+{flag}")).collect();
    match predicate.terms() {
        [Term::Executable(digest)] if is_known => (format!("hash:{digest}"), suffix),
        [Term::Package(package)] if is_known => (format!("pkg:{package}"), suffix),
        _ => (principal.to_string(), String::new()),
    }
}

/// A principal as a text that [`principal`] parses.
pub fn shown(principal: &Principal) -> String {
    let (who, suffix) = parts(principal);
    who + &suffix
}

/// An entry as a text that [`entry`] parses.
pub fn shown_entry(principal: &Principal, access: Access) -> String {
    let (who, suffix) = parts(principal);
    format!("{who}={access}{suffix}")
}

/// The rules for a mount's guard that admit exactly the program that a principal stands for; and its package,
/// if the principal is one.
///
/// # Errors
/// The principal does not stand for a program.
pub fn rules_for(principal: &Principal) -> Outcome<(RuleSet, Option<KeyName>)> {
    let none = || usage(format!("{}: a session for a program is for prog:, hash: or pkg:", shown(principal)));
    let (term, tolerates) = match principal {
        Principal::Package(package) => (Term::Package(package.clone()), Conditions::CLEAN),
        Principal::Such(predicate) => match predicate.terms() {
            [term] => (term.clone(), predicate.tolerates()),
            _ => return Err(none()),
        },
        _ => return Err(none()),
    };
    let (who, package) = match term {
        Term::Executable(digest) => (Subject::Program(digest), None),
        Term::Package(package) => {
            let who = Subject::Package { key: package.key.0, name: package.name.as_str().to_owned() };
            (who, Some(package))
        }
        _ => return Err(none()),
    };
    let rule = Rule {
        who,
        rights: Rights::ReadWrite,
        interpreter: tolerates.contains(Condition::Interpreter),
        generated: tolerates.contains(Condition::LooseCode),
        plain: tolerates.contains(Condition::Traceable),
        hint: String::new(),
    };
    let set = RuleSet::new(vec![rule]).map_err(|error| Failure::new(Exit::Internal, error))?;
    Ok((set, package))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: an entry that is displayed is parsed back as the same entry, and the rules for a program admit
    /// what the principal does.
    #[test]
    fn shown_is_read() {
        let hex = "ab".repeat(32);
        for text in [
            "user:bob=r".to_owned(),
            "group:staff=rw".to_owned(),
            format!("hash:{hex}=r"),
            format!("hash:{hex}=rw+interpreter+jit"),
            format!("hash:{hex}=r+jit"),
            format!("hash:{hex}=r+interpreter+plain"),
            format!("hashgroup:{hex}=r"),
            format!("key:{hex}=r"),
            format!("such:all(exe={hex};uid=7)=r"),
        ] {
            let (principal, access) = entry(&text).unwrap_or_else(|error| panic!("{text}: {error:?}"));
            assert_eq!(shown_entry(&principal, access), text);
        }
        for text in ["bob=r", "any=r", "user:bob=w", "user:bob=r+jit", "prog:/nowhere/at/all=r", "hash:12=r"]
        {
            assert!(entry(text).is_err(), "{text}");
        }
        let (program, _) = entry(&format!("hash:{hex}=r+interpreter")).expect("an entry");
        let (rules, package) = rules_for(&program).expect("a program");
        let [rule] = rules.rules() else { panic!("one rule") };
        assert_eq!((rule.interpreter, rule.generated, rule.plain, package), (true, false, false, None));
        assert!(rules_for(&entry("user:bob=r").expect("an entry").0).is_err());
    }
}
