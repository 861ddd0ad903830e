//! The rules of a file, their stored form and their text.
//!
//! Invariants: a set has one encoding (sorted, no program twice, decoded strictly); it is never empty, so
//! that no bytes mean "no rules"; a set of a newer version is refused completely, never read in part. Attack
//! answered: a file whose rules cannot be read must not be taken for a file without rules.
//!
//! Stored form: `HFACL`, one byte of version, then the rules in borsh. In version 1 all rules admit programs
//! however they were started ([`Rule::plain`]); a set with any other rule has version 2.

use crate::identity::{Allowed, Identity, Weakness};
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_crypto::{Digest, PublicKey, encode, keyfile};
use std::fmt;

/// First bytes of stored rules.
const MAGIC: &[u8; 5] = b"HFACL";
/// The version in which all rules are plain, and the version in which some are not.
const VERSION_PLAIN: u8 = 1;
const VERSION: u8 = 2;
/// Most rules of one file.
pub const RULES_MAX: usize = 64;
/// Most bytes of a hint or a package's name.
pub const TEXT_BYTES_MAX: usize = 256;
/// Most bytes of stored rules.
pub const BYTES_MAX: usize = 32 << 10;

/// Why rules are refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// A newer version wrote them.
    #[error("the rules are of version {0}, which this holdfast does not know; a newer one made them")]
    Newer(u8),
    /// The bytes are not the stored form of rules.
    #[error("the stored rules are malformed: {0}")]
    Malformed(String),
    /// The text is not a rule.
    #[error("{0:?} is no rule: {1}")]
    Text(String, &'static str),
    /// There are more than [`RULES_MAX`] rules.
    #[error("a file has at most {RULES_MAX} rules")]
    TooMany,
    /// The set has no rule.
    #[error("a set of rules names at least one program; to end all rules, clear them")]
    Empty,
}

/// The programs that a rule admits.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, BorshSerialize, BorshDeserialize)]
pub enum Subject {
    /// Every process that runs exactly this executable (its digest, [`crate::hashes::digest_of`]).
    Program(Digest),
    /// Every process whose executable a manifest of this name lists, signed by this key.
    Package {
        /// The key that signs the package's manifests.
        key: [u8; 32],
        /// The name of the package.
        name: String,
    },
    /// Every program: exempts one file from the rules that it inherited from its directory.
    Anybody,
}

/// What a rule allows a program to do with the file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, BorshSerialize, BorshDeserialize)]
pub enum Rights {
    /// Reading only.
    Read,
    /// Reading and writing.
    ReadWrite,
}

impl Rights {
    /// Whether these rights include the requested ones.
    pub fn cover(self, wanted: Rights) -> bool {
        self == Rights::ReadWrite || wanted == Rights::Read
    }
}

/// One rule.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, BorshSerialize, BorshDeserialize)]
pub struct Rule {
    /// The programs that the rule admits.
    pub who: Subject,
    /// What they may do.
    pub rights: Rights,
    /// Admits the program even if it is an interpreter, which runs other code.
    pub interpreter: bool,
    /// Admits the program even if it has code in memory that it generated itself.
    pub generated: bool,
    /// Admits the program even if it was not started clean ([`crate::starts`]).
    pub plain: bool,
    /// The program's path when the rule was made: for people, never compared.
    pub hint: String,
}

/// A rule as version 1 stores it.
#[derive(BorshSerialize, BorshDeserialize)]
struct RuleOne {
    who: Subject,
    rights: Rights,
    interpreter: bool,
    generated: bool,
    hint: String,
}

/// The rules of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RuleSet(Vec<Rule>);

/// Why an open is refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// No rule names the program.
    NotNamed,
    /// A rule names the program, but for reading only.
    ReadOnly,
    /// A rule admits the program, but the process has a weakness.
    Weak(Weakness),
}

impl RuleSet {
    /// A set of these rules.
    ///
    /// # Errors
    /// There are no rules, too many, or texts that are too long.
    pub fn new(mut rules: Vec<Rule>) -> Result<RuleSet, RuleError> {
        // A rule for everybody admits every process anyway.
        rules.iter_mut().filter(|rule| rule.who == Subject::Anybody).for_each(|rule| rule.plain = true);
        rules.sort();
        if rules.is_empty() {
            return Err(RuleError::Empty);
        }
        if rules.len() > RULES_MAX {
            return Err(RuleError::TooMany);
        }
        let long = |rule: &Rule| {
            let name = if let Subject::Package { name, .. } = &rule.who { name.len() } else { 1 };
            rule.hint.len() > TEXT_BYTES_MAX || name > TEXT_BYTES_MAX || name == 0
        };
        if rules.iter().any(long) {
            return Err(RuleError::Malformed("a name is empty or too long".into()));
        }
        if rules.windows(2).any(|pair| pair[0].who == pair[1].who) {
            return Err(RuleError::Malformed("a program is named twice".into()));
        }
        Ok(RuleSet(rules))
    }

    /// The rules, sorted.
    pub fn rules(&self) -> &[Rule] {
        &self.0
    }

    /// Adds a rule, in place of any other for the same program.
    ///
    /// # Errors
    /// There would be more than [`RULES_MAX`].
    pub fn with(mut self, rule: Rule) -> Result<RuleSet, RuleError> {
        self.0.retain(|other| other.who != rule.who);
        self.0.push(rule);
        RuleSet::new(self.0)
    }

    /// Removes any rule for this program. Returns `None` if that was the last one.
    pub fn without(mut self, who: &Subject) -> Option<RuleSet> {
        self.0.retain(|rule| rule.who != *who);
        (!self.0.is_empty()).then_some(self)
    }

    /// The stored form.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        if self.0.iter().any(|rule| !rule.plain) {
            bytes.push(VERSION);
            bytes.extend_from_slice(&encode(&self.0));
            return bytes;
        }
        let one = |rule: &Rule| {
            let Rule { who, rights, interpreter, generated, hint, .. } = rule.clone();
            RuleOne { who, rights, interpreter, generated, hint }
        };
        bytes.push(VERSION_PLAIN);
        bytes.extend_from_slice(&encode(&self.0.iter().map(one).collect::<Vec<_>>()));
        bytes
    }

    /// Decodes the stored form.
    ///
    /// # Errors
    /// [`RuleError::Newer`], [`RuleError::Malformed`]: then the file is refused to everybody.
    pub fn decode(bytes: &[u8]) -> Result<RuleSet, RuleError> {
        let malformed = |why: &str| RuleError::Malformed(why.to_owned());
        if bytes.len() > BYTES_MAX {
            return Err(malformed("too long"));
        }
        let body = bytes.strip_prefix(MAGIC.as_slice()).ok_or_else(|| malformed("no rules of holdfast"))?;
        let (version, body) = body.split_first().ok_or_else(|| malformed("cut short"))?;
        let wrong = |error: holdfast_crypto::DecodeError| RuleError::Malformed(error.why);
        let rules: Vec<Rule> = match *version {
            VERSION_PLAIN => {
                let rules: Vec<RuleOne> = holdfast_crypto::decode(body).map_err(wrong)?;
                let plain = |rule: RuleOne| {
                    let RuleOne { who, rights, interpreter, generated, hint } = rule;
                    Rule { who, rights, interpreter, generated, plain: true, hint }
                };
                rules.into_iter().map(plain).collect()
            }
            VERSION => holdfast_crypto::decode(body).map_err(wrong)?,
            newer => return Err(RuleError::Newer(newer)),
        };
        let set = RuleSet::new(rules)?;
        if set.encode() != bytes {
            return Err(malformed("not in order"));
        }
        Ok(set)
    }

    /// Whether a process is admitted, and by which rule. `in_package` returns whether a manifest that this
    /// key signed for a package of this name lists this executable.
    ///
    /// # Errors
    /// The reason for the refusal, from the rule that came nearest.
    pub fn decide(
        &self,
        identity: &Identity,
        wanted: Rights,
        in_package: &dyn Fn(&PublicKey, &str, &Digest) -> bool,
    ) -> Result<&Rule, Refusal> {
        let mut nearest = Refusal::NotNamed;
        for rule in &self.0 {
            let names = match &rule.who {
                Subject::Anybody => true,
                Subject::Program(digest) => *digest == identity.digest,
                Subject::Package { key, name } => in_package(&PublicKey(*key), name, &identity.digest),
            };
            if !names {
                continue;
            }
            let weakness = match &rule.who {
                Subject::Anybody => None,
                _ => identity.weakness(Allowed {
                    interpreter: rule.interpreter,
                    generated: rule.generated,
                    plain: rule.plain,
                }),
            };
            match weakness {
                None if rule.rights.cover(wanted) => return Ok(rule),
                None => nearest = Refusal::ReadOnly,
                Some(weakness) if nearest == Refusal::NotNamed => nearest = Refusal::Weak(weakness),
                Some(_) => {}
            }
        }
        Err(nearest)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::NotNamed => f.write_str("no rule of the file names this program"),
            Refusal::ReadOnly => f.write_str("the rule lets this program read, not write"),
            Refusal::Weak(weakness) => write!(f, "a rule names this program, but {weakness}"),
        }
    }
}

/// Writes `hash:HEX`, `pkg:KEY/NAME` or `any`, with `=r` or `=rw`, `+interpreter`, `+jit` and `+plain`.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.who, if self.rights == Rights::Read { "r" } else { "rw" })?;
        if self.interpreter {
            f.write_str("+interpreter")?;
        }
        if self.generated {
            f.write_str("+jit")?;
        }
        if self.plain && self.who != Subject::Anybody {
            f.write_str("+plain")?;
        }
        Ok(())
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Program(digest) => write!(f, "hash:{digest}"),
            Subject::Package { key, name } => {
                write!(f, "pkg:{}/{name}", keyfile::fingerprint(&PublicKey(*key)))
            }
            Subject::Anybody => f.write_str("any"),
        }
    }
}

/// A rule as users write it, before `prog:PATH` and `pkg:KEYFILE/NAME` are looked up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RuleText<'a> {
    /// The text before the last `=`.
    pub who: &'a str,
    /// The rights that are granted.
    pub rights: Rights,
    /// Whether `+interpreter` was given.
    pub interpreter: bool,
    /// Whether `+jit` was given.
    pub generated: bool,
    /// Whether `+plain` was given.
    pub plain: bool,
}

/// Parses `WHO=r` or `WHO=rw`, followed by any of `+interpreter`, `+jit` and `+plain`.
///
/// # Errors
/// [`RuleError::Text`].
pub fn parse(text: &str) -> Result<RuleText<'_>, RuleError> {
    let wrong = |why| RuleError::Text(text.to_owned(), why);
    let (who, rest) = text.rsplit_once('=').ok_or_else(|| wrong("write WHO=r or WHO=rw"))?;
    let mut parts = rest.split('+');
    let rights = match parts.next() {
        Some("r") => Rights::Read,
        Some("rw") => Rights::ReadWrite,
        _ => return Err(wrong("the rights are r or rw")),
    };
    let mut found = RuleText { who, rights, interpreter: false, generated: false, plain: false };
    for flag in parts {
        match flag {
            "interpreter" => found.interpreter = true,
            "jit" => found.generated = true,
            "plain" => found.plain = true,
            _ => return Err(wrong("behind the rights stand +interpreter, +jit and +plain")),
        }
    }
    if who.is_empty() { Err(wrong("it names nobody")) } else { Ok(found) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rule(byte: u8, rights: Rights) -> Rule {
        let who = Subject::Program(Digest([byte; 32]));
        Rule { who, rights, interpreter: false, generated: false, plain: true, hint: "/usr/bin/ssh".into() }
    }

    fn nothing(_: &PublicKey, _: &str, _: &Digest) -> bool {
        false
    }

    /// The stored forms of versions 1 and 2 never change.
    #[test]
    fn golden() {
        let package = Rule {
            who: Subject::Package { key: [7; 32], name: "editor".into() },
            rights: Rights::ReadWrite,
            interpreter: true,
            generated: false,
            plain: true,
            hint: String::new(),
        };
        let bytes = RuleSet::new(vec![package.clone(), rule(1, Rights::Read)]).expect("rules").encode();
        let mut expected = b"HFACL\x01\x02\0\0\0\0".to_vec();
        expected.extend([1; 32]);
        expected.extend(b"\0\0\0\x0c\0\0\0/usr/bin/ssh\x01");
        expected.extend([7; 32]);
        expected.extend(b"\x06\0\0\0editor\x01\x01\0\0\0\0\0");
        assert_eq!(bytes, expected);
        assert!(RuleSet::decode(&expected).expect("rules").rules().iter().all(|rule| rule.plain));

        let clean = Rule { plain: false, ..rule(1, Rights::Read) };
        let set = RuleSet::new(vec![package, clean]).expect("rules");
        let mut expected = b"HFACL\x02\x02\0\0\0\0".to_vec();
        expected.extend([1; 32]);
        expected.extend(b"\0\0\0\0\x0c\0\0\0/usr/bin/ssh\x01");
        expected.extend([7; 32]);
        expected.extend(b"\x06\0\0\0editor\x01\x01\0\x01\0\0\0\0");
        assert_eq!(set.encode(), expected);
        assert_eq!(RuleSet::decode(&expected), Ok(set));
    }

    /// Anything but the one encoding of a set is refused: a newer version as such, and bytes that are
    /// truncated, longer, out of order or empty.
    #[test]
    fn nothing_else_is_rules() {
        let set = RuleSet::new(vec![rule(1, Rights::Read), rule(2, Rights::ReadWrite)]).expect("rules");
        let bytes = set.encode();
        assert_eq!(RuleSet::decode(&bytes), Ok(set));
        for end in 0..bytes.len() {
            assert!(RuleSet::decode(&bytes[..end]).is_err(), "{end}");
        }
        assert!(RuleSet::decode(&[bytes.as_slice(), b"x"].concat()).is_err());
        let mut newer = bytes.clone();
        newer[5] = 3;
        assert_eq!(RuleSet::decode(&newer), Err(RuleError::Newer(3)));
        // Rules that are all plain have only the encoding of version 1.
        let all_plain = [MAGIC.as_slice(), &[2], &encode([rule(1, Rights::Read)].as_slice())].concat();
        assert!(matches!(RuleSet::decode(&all_plain), Err(RuleError::Malformed(_))));
        let mut empty = MAGIC.to_vec();
        empty.extend([1, 0, 0, 0, 0]);
        assert_eq!(RuleSet::decode(&empty), Err(RuleError::Empty));
        let swapped = [rule(2, Rights::Read), rule(1, Rights::Read)];
        let swapped = swapped.map(|rule| Rule { plain: false, ..rule });
        let disordered = [MAGIC.as_slice(), &[2], &encode(swapped.as_slice())].concat();
        assert!(matches!(RuleSet::decode(&disordered), Err(RuleError::Malformed(_))));
        let twice = RuleSet::new(vec![rule(1, Rights::Read), rule(1, Rights::ReadWrite)]);
        assert!(twice.is_err());
    }

    proptest! {
        /// No bytes make the decoder panic, and encoding what it accepts gives the same bytes.
        #[test]
        fn decoding_is_strict(noise in proptest::collection::vec(any::<u8>(), 0..200), at in 0usize..400, to: u8) {
            let _ = RuleSet::decode(&noise);
            let mut bytes = RuleSet::new((0..5).map(|byte| rule(byte, Rights::Read)).collect()).expect("rules").encode();
            let at = at % bytes.len();
            bytes[at] = to;
            if let Ok(set) = RuleSet::decode(&bytes) {
                prop_assert_eq!(set.encode(), bytes);
            }
        }
    }

    /// The nearest rule decides: hash, rights, package, and each weakness that a rule may or may not excuse.
    #[test]
    fn decisions() {
        let set = RuleSet::new(vec![rule(1, Rights::Read), rule(2, Rights::ReadWrite)]).expect("rules");
        let mut one = Identity::plain(Digest([1; 32]), "/bin/one");
        assert!(set.decide(&one, Rights::Read, &nothing).is_ok());
        assert_eq!(set.decide(&one, Rights::ReadWrite, &nothing), Err(Refusal::ReadOnly));
        let other = Identity::plain(Digest([9; 32]), "/bin/one");
        assert_eq!(set.decide(&other, Rights::Read, &nothing), Err(Refusal::NotNamed));
        let clean = RuleSet::new(vec![Rule { plain: false, ..rule(1, Rights::Read) }]).expect("rules");
        assert!(clean.decide(&one, Rights::Read, &nothing).is_ok());
        let reachable = Identity { clean: false, ..one.clone() };
        assert_eq!(clean.decide(&reachable, Rights::Read, &nothing), Err(Refusal::Weak(Weakness::Reachable)));
        assert!(set.decide(&reachable, Rights::Read, &nothing).is_ok());
        one.tracer = 7;
        assert!(matches!(set.decide(&one, Rights::Read, &nothing), Err(Refusal::Weak(Weakness::Traced(7)))));
        let mut script = Identity::plain(Digest([2; 32]), "/bin/python3");
        script.interpreter = Some("its name".into());
        assert!(matches!(
            set.decide(&script, Rights::Read, &nothing),
            Err(Refusal::Weak(Weakness::Interpreter(_)))
        ));
        let excused = set.clone().with(Rule { interpreter: true, ..rule(2, Rights::Read) }).expect("rules");
        assert!(excused.decide(&script, Rights::Read, &nothing).is_ok());
        let package =
            Rule { who: Subject::Package { key: [3; 32], name: "p".into() }, ..rule(0, Rights::Read) };
        let packages = RuleSet::new(vec![package]).expect("rules");
        let listed = |key: &PublicKey, name: &str, digest: &Digest| {
            key.0 == [3; 32] && name == "p" && *digest == Digest([9; 32])
        };
        assert!(packages.decide(&other, Rights::Read, &listed).is_ok());
        assert!(packages.decide(&script, Rights::Read, &listed).is_err());
        let anybody =
            RuleSet::new(vec![Rule { who: Subject::Anybody, ..rule(0, Rights::ReadWrite) }]).expect("rules");
        assert!(anybody.decide(&one, Rights::ReadWrite, &nothing).is_ok());
    }

    /// The text of rules is parsed, and other text is refused.
    #[test]
    fn texts() {
        let found = parse("prog:/usr/bin/a=b=rw+jit").expect("a rule");
        assert_eq!((found.who, found.rights), ("prog:/usr/bin/a=b", Rights::ReadWrite));
        assert!(found.generated && !found.interpreter);
        assert!(parse("prog:/x=r+plain").expect("a rule").plain && !found.plain);
        for wrong in ["", "prog:/x", "prog:/x=", "prog:/x=w", "prog:/x=rwx", "=r", "prog:/x=r+all"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
