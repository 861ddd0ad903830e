//! The manual is what the program says.

use std::process::Command;

/// The whole manual can be printed as Markdown: a part for each command, and the exit codes at its end.
#[test]
fn the_manual_can_be_printed() {
    let output = Command::new(env!("CARGO_BIN_EXE_holdfast"))
        .args(["man", "--markdown"])
        .env_remove("HOLDFAST_STATE_DIR")
        .env_remove("HOLDFAST_CACHE_DIR")
        .output()
        .expect("it runs");
    assert!(output.status.success());
    let says = String::from_utf8(output.stdout).expect("text");
    assert!(says.starts_with("# Manual\n"), "{says}");
    for part in ["holdfast", "holdfast mount", "holdfast fs create", "holdfast release keys init"] {
        assert!(says.contains(&format!("\n## `{part}`\n")), "{part}");
    }
    assert!(says.contains("\n## Exit codes\n"));
    assert!(says.matches("Example").count() > 50, "commands have examples");
}

/// Every command that a person can use has help with an example, a manual page and a place in completions.
#[test]
fn every_command_has_help_a_page_and_completions() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_holdfast")).args(arguments).output().expect("it runs");
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    };
    run(&["man", "--to", folder.path().to_str().expect("text")]);
    let completions = run(&["completions", "bash"]);
    for command in [
        "keygen",
        "server",
        "mount",
        "umount",
        "status",
        "evidence",
        "salvage",
        "conflicts",
        "snapshot",
        "history",
        "restore",
        "release",
        "fs stats",
        "fs reclaim",
        "release pull",
        "release publish",
        "release ls",
        "release cat",
        "release get",
        "release verify",
        "release serve",
        "volume",
        "volume owner",
        "volume credential",
        "program",
        "program acl",
        "help",
        "man",
    ] {
        let words: Vec<&str> = command.split(' ').collect();
        assert!(run(&[&words[..], &["--help"]].concat()).contains("Example"), "{command}");
        assert!(folder.path().join(format!("holdfast-{}.1", words.join("-"))).is_file(), "{command}");
        assert!(completions.contains(&words.join("__subcmd__")), "{command}");
    }
    for command in ["create", "user", "group", "device"] {
        assert!(run(&["fs", command, "--help"]).contains("Example"), "fs {command}");
        assert!(run(&["help", "fs", command]).contains("Example"), "help fs {command}");
    }
    for command in ["keys", "renew", "revoke", "sign", "show"] {
        assert!(run(&["release", command, "--help"]).contains("Example"), "release {command}");
    }
    for command in ["init", "rotate"] {
        assert!(run(&["release", "keys", command, "--help"]).contains("Example"), "release keys {command}");
    }
    assert!(folder.path().join("holdfast-exit-codes.1").is_file());
}
