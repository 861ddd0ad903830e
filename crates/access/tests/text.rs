//! The text forms: read back as printed, and refused when they are anything else.

use crate::common;

use common::*;
use holdfast_access::*;
use holdfast_crypto::{Digest, keyfile};
use proptest::prelude::*;

fn some_name() -> impl Strategy<Value = Name> {
    "[A-Za-z0-9._+@-]{1,64}".prop_map(|text| name(&text))
}

fn some_key_name() -> impl Strategy<Value = KeyName> {
    (any::<u8>(), some_name()).prop_map(|(seed, name)| KeyName { key: signing_key(seed).public(), name })
}

fn some_leaf() -> impl Strategy<Value = Term> {
    prop_oneof![
        any::<[u8; 32]>().prop_map(|bytes| Term::Program(ProgramHash(Digest(bytes)))),
        any::<[u8; 32]>().prop_map(|bytes| Term::Executable(Digest(bytes))),
        some_key_name().prop_map(Term::Package),
        some_name().prop_map(Term::Component),
        (some_name(), "\\PC{0,60}")
            .prop_map(|(name, value)| Term::Setting(name, Text::new(&value).expect("short"))),
        any::<u32>().prop_map(Term::Uid),
    ]
}

fn some_predicate() -> impl Strategy<Value = Predicate> {
    let conditions = proptest::sample::subsequence(Condition::ALL.to_vec(), 0..=4)
        .prop_map(|some| some.into_iter().fold(Conditions::CLEAN, Conditions::with));
    let terms = (0..4, proptest::collection::vec(some_leaf(), 2..6)).prop_map(|(shape, leaves)| {
        let count = leaves.len() as u8;
        match shape {
            0 => leaves[..1].to_vec(),
            1 => [vec![Term::Not, Term::All(count)], leaves].concat(),
            2 => [vec![Term::Any(count)], leaves].concat(),
            _ => {
                [vec![Term::All(2), Term::Not], leaves[..1].to_vec(), vec![Term::Any(count)], leaves].concat()
            }
        }
    });
    (terms, conditions).prop_map(|(terms, tolerates)| Predicate::new(terms, tolerates).expect("a tree"))
}

fn some_principal() -> impl Strategy<Value = Principal> {
    prop_oneof![
        Just(Principal::Machine),
        some_name().prop_map(Principal::User),
        some_name().prop_map(Principal::Group),
        any::<u8>().prop_map(key),
        some_key_name().prop_map(Principal::Named),
        any::<([u8; 16], u64)>().prop_map(|(boot, number)| Principal::Process(ProcessName { boot, number })),
        any::<[u8; 32]>().prop_map(|bytes| Principal::Program(ProgramHash(Digest(bytes)))),
        some_key_name().prop_map(Principal::Package),
        some_predicate().prop_map(Principal::Such),
    ]
}

proptest! {
    #[test]
    fn principals_are_read_back_as_printed(principal in some_principal()) {
        let text = principal.to_string();
        prop_assert!(!text.contains([' ', ',', '\n']), "{}", text);
        prop_assert_eq!(text.parse::<Principal>(), Ok(principal));
    }

    #[test]
    fn lists_are_read_back_as_printed(
        entries in proptest::collection::vec((some_principal(), any::<bool>()), 0..8)
    ) {
        let mut acl = Acl::nobody();
        for (principal, write) in entries {
            if principal.is_storable() {
                acl.set(principal, if write { Access::ReadWrite } else { Access::Read }).expect("room");
            }
        }
        prop_assert_eq!(acl.to_string().parse::<Acl>(), Ok(acl));
    }

    /// Nothing that people type panics, and what is accepted prints to something that means the same.
    #[test]
    fn any_text_is_read_or_refused(text in "\\PC{0,80}|(such|user|key|all|not|uid|set|[:+=;()%,/]|[0-9a-f]){0,20}") {
        if let Ok(principal) = text.parse::<Principal>() {
            prop_assert_eq!(principal.to_string().parse::<Principal>(), Ok(principal));
        }
        if let Ok(acl) = text.parse::<Acl>() {
            prop_assert_eq!(acl.to_string().parse::<Acl>(), Ok(acl));
        }
        let _ = format!("such:{text}").parse::<Principal>();
        let _ = format!("such:set.x={text}").parse::<Principal>();
    }
}

/// The examples of `docs/internals/access.md`.
#[test]
fn forms_for_people() {
    let public = signing_key(1).public();
    let such = |terms| Predicate::new(terms, Conditions::CLEAN).expect("a tree");
    let table = [
        ("user:alice".to_owned(), user("alice")),
        ("group:staff".to_owned(), group("staff")),
        (format!("key:{public}"), key(1)),
        (format!("key:{public}/bob"), named(1, "bob")),
        (format!("hash:{}", Digest([5; 32])), Principal::Program(ProgramHash(Digest([5; 32])))),
        (format!("pkg:{public}/holdfast"), Principal::Package(package(1, "holdfast"))),
        (
            "such:all(component=fat;set.partition=2048-4096;not(uid=0))".to_owned(),
            Principal::Such(such(vec![
                Term::All(3),
                Term::Component(name("fat")),
                Term::Setting(name("partition"), Text::new("2048-4096").expect("a text")),
                Term::Not,
                Term::Uid(0),
            ])),
        ),
        (
            "such+traceable+interpreter:uid=1000".to_owned(),
            Principal::Such(
                Predicate::new(
                    vec![Term::Uid(1000)],
                    Conditions::CLEAN.with(Condition::Traceable).with(Condition::Interpreter),
                )
                .expect("a tree"),
            ),
        ),
        ("such:set.root=a%20b%3B%25".to_owned(), {
            let value = Text::new("a b;%").expect("a text");
            Principal::Such(such(vec![Term::Setting(name("root"), value)]))
        }),
        (format!("process:{}/12", "07".repeat(16)), process(12)),
        ("machine:".to_owned(), Principal::Machine),
    ];
    for (text, principal) in table {
        assert_eq!(text.parse(), Ok(principal.clone()), "{text}");
        assert_eq!(principal.to_string(), text);
    }
    let line = keyfile::format_public(&public, "alice@laptop");
    assert_eq!(format!("key:{line}").parse(), Ok(key(1)), "the line of an OpenSSH public key");
    let acl: Acl = "user:alice=rw, group:staff=r".parse().expect("a list");
    assert_eq!(acl.to_string(), "user:alice=rw,group:staff=r");
    assert_eq!("".parse(), Ok(Acl::nobody()));
}

#[test]
fn other_forms_are_refused() {
    let long = "n".repeat(65);
    let deep = format!("such:{}uid=1{}", "not(".repeat(100_000), ")".repeat(100_000));
    let principals = [
        "",
        "alice",
        "user:",
        "user:a b",
        "user:a/b",
        "user:al\u{ed}ce",
        "machine:x",
        "key:12",
        "key:/x",
        "hash:",
        "key:ssh-rsa AAAA",
        "pkg:name",
        "process:1/2",
        "process:+7070707070707070707070707070707/1",
        "such",
        "such:",
        "suchx:uid=1",
        "such+:uid=1",
        "such+brave:uid=1",
        "such:uid=01",
        "such:uid=+1",
        "such:uid=4294967296",
        "such:all(uid=1)",
        "such:not(uid=1;uid=2)",
        "such:all(uid=1;uid=2",
        "such:uid=1)",
        "such:uid=1;uid=2",
        "such:all(uid=1;uid=2)x",
        "such:set.a=%2",
        "such:set.a=%zz",
        "such:set.a=%ff",
        "such:set.a=%0a",
        "such:set.=x",
        &format!("user:{long}"),
        &deep,
    ];
    for text in principals {
        assert!(text.parse::<Principal>().is_err(), "{text:.60}");
    }
    for text in
        ["user:alice", "user:alice=w", "user:alice=rw,", "user:alice=r,user:alice=rw", "process:1=r", ","]
    {
        assert!(text.parse::<Acl>().is_err(), "{text}");
    }
    let a_process = format!("process:{}/12=r", "07".repeat(16));
    assert_eq!(a_process.parse::<Acl>(), Err(AccessError::NotStorable(process(12))));
}
