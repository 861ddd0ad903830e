//! The command line as a tree: few commands at the top, the others under the nouns they belong to. The earlier
//! spellings go on working, and are in no help, manual or completion.

use std::process::{Command, Output};

/// Earlier spellings, and those of today.
const SPELLINGS: [(&str, &str); 21] = [
    ("blocks", "server blocks"),
    ("import", "fs import"),
    ("stats", "fs stats"),
    ("reclaim", "fs reclaim"),
    ("state", "fs state"),
    ("publish", "release publish"),
    ("ls", "release ls"),
    ("cat", "release cat"),
    ("get", "release get"),
    ("verify", "release verify"),
    ("export", "release export"),
    ("pull", "release pull"),
    ("serve", "release serve"),
    ("gateway", "release gateway"),
    ("acl", "program acl"),
    ("why", "program why"),
    ("run", "program run"),
    ("callers", "program callers"),
    ("owner", "volume owner"),
    ("credential", "volume credential"),
    ("peers", "evidence peers"),
];
/// So few commands at the top that people read the list.
const AT_THE_TOP_MAX: usize = 16;

fn holdfast(line: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
    for name in ["HOLDFAST_STATE_DIR", "HOLDFAST_CACHE_DIR", "HOLDFAST_REVOCATIONS", "SOURCE_DATE_EPOCH"] {
        command.env_remove(name);
    }
    command.args(line.split_whitespace()).output().expect("it runs")
}

/// The output of a command that must succeed.
#[track_caller]
fn text(line: &str) -> String {
    let output = holdfast(line);
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// An earlier spelling has the options, subcommands and examples of today's, and refuses the same with the same code.
/// Its help names today's spelling.
#[test]
fn former_spellings_are_the_same_commands() {
    for (former, present) in SPELLINGS {
        let usage = |text: &str| {
            let text = text.split_once("\nUsage: ").expect("it has a usage").1;
            text.replace(&format!("holdfast {former} "), &format!("holdfast {present} "))
        };
        for option in ["--help", "-h"] {
            let (old, new) = (text(&format!("{former} {option}")), text(&format!("{present} {option}")));
            assert_eq!(usage(&old), usage(&new), "{former}");
            assert!(old.starts_with(&format!("Former spelling of `holdfast {present}`\n")), "{old}");
            assert!(new.contains("Example"), "{present}");
        }
        let (old, new) = (text(&format!("help {former}")), text(&format!("help {present}")));
        assert_eq!(usage(&old), usage(&new), "{former}");
        let (old, new) =
            (holdfast(&format!("{former} --no-such")), holdfast(&format!("{present} --no-such")));
        assert_eq!((old.status.code(), new.status.code()), (Some(64), Some(64)), "{former}");
        assert!(old.stdout.is_empty() && new.stdout.is_empty(), "{former}");
    }
}

/// An earlier spelling does what today's does.
#[test]
fn former_spellings_do_the_same() {
    let this = env!("CARGO_BIN_EXE_holdfast");
    let (old, new) =
        (text(&format!("--json run -- {this} --version")), text(&format!("program run -- {this} --version")));
    assert_eq!(old, new);
    assert!(old.starts_with("holdfast "), "{old}");
    for rest in ["no-such-release --id 00 ", "hf+release:00@/no/such/directory"] {
        let (old, new) = (holdfast(&format!("ls {rest}")), holdfast(&format!("release ls {rest}")));
        assert_eq!((old.status, old.stderr), (new.status, new.stderr), "{rest}");
    }
}

/// `holdfast` alone and `holdfast --help` name the few commands that matter, in groups, and say where the others are.
#[test]
fn the_help_at_the_top_is_short() {
    let alone = holdfast("");
    assert_eq!(alone.status.code(), Some(64));
    assert!(alone.stdout.is_empty());
    let help = text("--help");
    for shown in [&String::from_utf8(alone.stderr).expect("text"), &text("help"), &text("-h"), &help] {
        let groups = shown.split("Options:").next().expect("there is something");
        let named: Vec<&str> = groups
            .lines()
            .filter_map(|line| line.strip_prefix("  ")?.split_once("  "))
            .map(|(name, _)| name.trim())
            .collect();
        assert!((12..=AT_THE_TOP_MAX).contains(&named.len()), "{named:?}");
        for name in named {
            assert!(holdfast(&format!("{name} --help")).status.success(), "{name}");
        }
        assert!(shown.contains("holdfast help --all"), "{shown}");
        assert!(groups.lines().all(|line| line.chars().count() <= 80), "{groups}");
    }
}

/// `holdfast help --all`, manual, pages and completions have every command by today's spelling only.
#[test]
fn former_spellings_are_not_documented() {
    let folder = tempfile::tempdir().expect("a folder");
    text(&format!("man --to {}", folder.path().display()));
    let (all, manual) = (text("help --all"), text("man --markdown"));
    for (former, present) in SPELLINGS {
        let names =
            |text: &str, name: &str| text.lines().any(|line| line.starts_with(&format!("holdfast {name} ")));
        assert!(names(&all, present) && !names(&all, former), "{present}: {all}");
        assert!(manual.contains(&format!("## `holdfast {present}`\n")), "{present}");
        assert!(!manual.contains(&format!("## `holdfast {former}`\n")), "{former}");
        let page =
            |name: &str| folder.path().join(format!("holdfast-{}.1", name.replace(' ', "-"))).is_file();
        assert!(page(present) && !page(former), "{former}");
    }
    let script = text("completions fish");
    let at_the_top: Vec<&str> =
        script.lines().filter(|line| line.contains("needs_command") && line.contains(" -a ")).collect();
    let offers = |name: &str| at_the_top.iter().any(|line| line.contains(&format!(" -a \"{name}\"")));
    assert!(offers("mount") && offers("release"), "{at_the_top:?}");
    for former in SPELLINGS.iter().map(|(former, _)| *former).chain(["watch"]) {
        assert!(!offers(former), "{former}");
    }
}
