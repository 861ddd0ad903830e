//! The text forms of principals and lists, for people and command lines. Not in the trusted base: guards
//! compare values, never texts. The grammar is in `docs/internals/access.md`; printed text parses to the same
//! value.

use crate::{
    Access, AccessError, Acl, Condition, Conditions, KeyName, Name, Predicate, Principal, ProcessName,
    ProgramHash, TERMS_MAX, Term, Text,
};
use holdfast_crypto::{Digest, PublicKey, keyfile};
use std::fmt;
use std::str::FromStr;

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for KeyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.key, self.name)
    }
}

impl fmt::Display for ProcessName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}/{}", u128::from_be_bytes(self.boot), self.number)
    }
}

impl fmt::Display for ProgramHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Principal::Machine => f.write_str("machine:"),
            Principal::User(name) => write!(f, "user:{name}"),
            Principal::Group(name) => write!(f, "group:{name}"),
            Principal::Key(key) => write!(f, "key:{key}"),
            Principal::Named(named) => write!(f, "key:{named}"),
            Principal::Process(process) => write!(f, "process:{process}"),
            Principal::Program(hash) => write!(f, "hash:{hash}"),
            Principal::Package(package) => write!(f, "pkg:{package}"),
            Principal::Such(predicate) => write!(f, "such{predicate}"),
        }
    }
}

fn wrong(what: &'static str, why: impl Into<String>) -> AccessError {
    AccessError::Malformed { what, why: why.into() }
}

fn digest(text: &str) -> Result<Digest, AccessError> {
    Digest::from_hex(text).ok_or_else(|| wrong("hash", format!("{text:?} is not 64 hexadecimal digits")))
}

fn key(text: &str) -> Result<PublicKey, AccessError> {
    if text.starts_with("ssh-") {
        return keyfile::parse_public(text).map_err(|error| wrong("key", error.to_string()));
    }
    Ok(PublicKey(digest(text)?.0))
}

fn key_name(text: &str) -> Result<KeyName, AccessError> {
    let (key_text, name) =
        text.rsplit_once('/').ok_or_else(|| wrong("name under a key", format!("{text:?} has no /NAME")))?;
    Ok(KeyName { key: key(key_text)?, name: Name::new(name)? })
}

fn number<T: FromStr + fmt::Display>(text: &str) -> Result<T, AccessError> {
    let parsed = text.parse::<T>().ok().filter(|value| value.to_string() == text);
    parsed.ok_or_else(|| wrong("number", format!("{text:?} is not one, or out of range")))
}

fn process(text: &str) -> Result<ProcessName, AccessError> {
    let (boot, count) = text.split_once('/').ok_or_else(|| wrong("process", "want BOOT/NUMBER"))?;
    let digits = boot.len() == 32 && boot.bytes().all(|byte| byte.is_ascii_hexdigit());
    let boot = u128::from_str_radix(boot, 16).ok().filter(|_| digits);
    let boot = boot.ok_or_else(|| wrong("process", "BOOT is 32 hexadecimal digits"))?;
    Ok(ProcessName { boot: boot.to_be_bytes(), number: number(count)? })
}

impl FromStr for Principal {
    type Err = AccessError;

    fn from_str(text: &str) -> Result<Principal, AccessError> {
        let known =
            "a principal is user:NAME, group:NAME, key:KEY, key:KEY/NAME, hash:HEX, pkg:KEY/NAME or such:…";
        let (kind, rest) = text.split_once(':').ok_or_else(|| wrong("principal", known))?;
        Ok(match kind {
            "machine" if rest.is_empty() => Principal::Machine,
            "user" => Principal::User(Name::new(rest)?),
            "group" => Principal::Group(Name::new(rest)?),
            // An OpenSSH key contains slashes itself.
            "key" if rest.contains('/') && !rest.starts_with("ssh-") => Principal::Named(key_name(rest)?),
            "key" => Principal::Key(key(rest)?),
            "process" => Principal::Process(process(rest)?),
            "hash" => Principal::Program(ProgramHash(digest(rest)?)),
            "pkg" => Principal::Package(key_name(rest)?),
            _ => match text.strip_prefix("such") {
                Some(predicate) => Principal::Such(predicate.parse()?),
                None => return Err(wrong("principal", known)),
            },
        })
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Access::Read => "r",
            Access::ReadWrite => "rw",
        })
    }
}

impl FromStr for Access {
    type Err = AccessError;

    fn from_str(text: &str) -> Result<Access, AccessError> {
        match text {
            "r" => Ok(Access::Read),
            "rw" => Ok(Access::ReadWrite),
            _ => Err(wrong("access", format!("{text:?}: want r or rw"))),
        }
    }
}

impl fmt::Display for Acl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (principal, access)) in self.entries().enumerate() {
            write!(f, "{}{principal}={access}", if number == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

/// Reads one entry, `user:alice=rw`.
///
/// # Errors
/// [`AccessError::Malformed`] and the errors of names.
pub fn acl_entry(text: &str) -> Result<(Principal, Access), AccessError> {
    let (principal, access) = text
        .rsplit_once('=')
        .ok_or_else(|| wrong("ACL entry", format!("{text:?}: want PRINCIPAL=r or =rw")))?;
    Ok((principal.parse()?, access.parse()?))
}

impl FromStr for Acl {
    type Err = AccessError;

    fn from_str(text: &str) -> Result<Acl, AccessError> {
        let mut acl = Acl::nobody();
        for entry in text.split(',').map(str::trim).filter(|_| !text.trim().is_empty()) {
            let (principal, access) = acl_entry(entry)?;
            if acl.granted_to(&principal).is_some() {
                return Err(wrong("ACL", format!("{principal} is listed twice")));
            }
            acl.set(principal, access)?;
        }
        Ok(acl)
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Condition::Traceable => "traceable",
            Condition::Interpreter => "interpreter",
            Condition::LooseCode => "loose-code",
            Condition::Preloaded => "preloaded",
        })
    }
}

impl FromStr for Condition {
    type Err = AccessError;

    fn from_str(text: &str) -> Result<Condition, AccessError> {
        Condition::ALL.into_iter().find(|condition| condition.to_string() == text).ok_or_else(|| {
            wrong("condition", format!("{text:?}: want traceable, interpreter, loose-code or preloaded"))
        })
    }
}

/// A value, with everything that the grammar uses as `%XX`.
fn escaped(text: &Text) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-+@/:".contains(&byte);
    text.as_str()
        .bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

fn unescaped(text: &str) -> Result<Text, AccessError> {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let code = part.get(..2).filter(|code| code.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let byte = code.and_then(|code| u8::from_str_radix(code, 16).ok());
        bytes.push(byte.ok_or_else(|| wrong("value", "% is followed by two hexadecimal digits"))?);
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    let text = String::from_utf8(bytes).map_err(|_| wrong("value", "it is not UTF-8"))?;
    Text::new(&text)
}

impl fmt::Display for Predicate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for condition in Condition::ALL.into_iter().filter(|one| self.tolerates().contains(*one)) {
            write!(f, "+{condition}")?;
        }
        f.write_str(":")?;
        // Number of operands that each open operator still needs.
        let mut open: Vec<u8> = Vec::new();
        for term in self.terms() {
            match term {
                Term::All(count) => {
                    f.write_str("all(")?;
                    open.push(*count);
                    continue;
                }
                Term::Any(count) => {
                    f.write_str("any(")?;
                    open.push(*count);
                    continue;
                }
                Term::Not => {
                    f.write_str("not(")?;
                    open.push(1);
                    continue;
                }
                Term::Program(hash) => write!(f, "hash={hash}")?,
                Term::Executable(digest) => write!(f, "exe={digest}")?,
                Term::Package(package) => write!(f, "pkg={package}")?,
                Term::Component(name) => write!(f, "component={name}")?,
                Term::Setting(name, value) => write!(f, "set.{name}={}", escaped(value))?,
                Term::Uid(uid) => write!(f, "uid={uid}")?,
            }
            while let Some(awaited) = open.last_mut() {
                *awaited -= 1;
                if *awaited > 0 {
                    f.write_str(";")?;
                    break;
                }
                f.write_str(")")?;
                open.pop();
            }
        }
        Ok(())
    }
}

fn leaf(text: &str) -> Result<Term, AccessError> {
    let known = "want all(…;…), any(…;…), not(…), hash=, exe=, pkg=, component=, set.NAME= or uid=";
    let (what, value) = text.split_once('=').ok_or_else(|| wrong("predicate", known))?;
    Ok(match what {
        "hash" => Term::Program(ProgramHash(digest(value)?)),
        "exe" => Term::Executable(digest(value)?),
        "pkg" => Term::Package(key_name(value)?),
        "component" => Term::Component(Name::new(value)?),
        "uid" => Term::Uid(number(value)?),
        _ => match what.strip_prefix("set.") {
            Some(name) => Term::Setting(Name::new(name)?, unescaped(value)?),
            None => return Err(wrong("predicate", known)),
        },
    })
}

/// The terms of an expression, without recursion: `open` holds where each open operator is, and its operands so far.
fn terms(mut rest: &str) -> Result<Vec<Term>, AccessError> {
    let mut terms: Vec<Term> = Vec::new();
    let mut open: Vec<(usize, u8)> = Vec::new();
    loop {
        if terms.len() > TERMS_MAX {
            return Err(AccessError::BadPredicate("it has more than 32 terms"));
        }
        let operator = [("all(", Term::All(0)), ("any(", Term::Any(0)), ("not(", Term::Not)]
            .into_iter()
            .find_map(|(word, term)| Some((rest.strip_prefix(word)?, term)));
        if let Some((after, term)) = operator {
            open.push((terms.len(), 1));
            terms.push(term);
            rest = after;
            continue;
        }
        let end = rest.find([';', ')']).unwrap_or(rest.len());
        terms.push(leaf(&rest[..end])?);
        rest = &rest[end..];
        while let Some(after) = rest.strip_prefix(')') {
            let (place, count) = open.pop().ok_or(AccessError::BadPredicate("a ) too many"))?;
            match &mut terms[place] {
                Term::All(operands) | Term::Any(operands) => *operands = count,
                _ if count == 1 => {}
                _ => return Err(AccessError::BadPredicate("`not` wants one operand")),
            }
            rest = after;
        }
        match (rest.strip_prefix(';'), open.last_mut()) {
            (Some(after), Some((_, count))) => {
                *count += 1;
                rest = after;
            }
            (None, None) if rest.is_empty() => return Ok(terms),
            (None, Some(_)) if rest.is_empty() => return Err(AccessError::BadPredicate("a ) is missing")),
            _ => return Err(AccessError::BadPredicate("text follows its end")),
        }
    }
}

impl FromStr for Predicate {
    type Err = AccessError;

    /// Parses what follows `such`.
    fn from_str(text: &str) -> Result<Predicate, AccessError> {
        let (conditions, expression) =
            text.split_once(':').ok_or_else(|| wrong("predicate", "want such:…"))?;
        let mut tolerates = Conditions::CLEAN;
        let mut words = conditions.split('+');
        if words.next() != Some("") {
            return Err(wrong("predicate", "want such:… or such+CONDITION:…"));
        }
        for word in words {
            tolerates = tolerates.with(word.parse()?);
        }
        Predicate::new(terms(expression)?, tolerates)
    }
}
