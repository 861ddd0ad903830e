//! Documents that are edited and saved in the way of editors.

use super::place::limited;
use anyhow::{Context, ensure};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// The number of times a document is saved.
const SAVES: usize = 5;

/// Edits a text with vim, which keeps a swap file beside it, and with each save renames the old text to a backup and
/// writes the new one.
pub(super) fn vim(text: &Path, limit: Duration) -> anyhow::Result<()> {
    let lines = std::fs::read(text)?.iter().filter(|byte| **byte == b'\n').count();
    let mut vim = limited(limit, "vim");
    vim.args(["-es", "-N", "-u", "NONE", "-i", "NONE", "--cmd"]);
    // vim makes no backups in /tmp, where the mounts are, unless told to.
    vim.arg("set swapfile directory=. backup writebackup backupdir=. backupskip= backupcopy=no fsync");
    vim.current_dir(text.parent().context("no parent")?).arg(text.file_name().context("no name")?);
    feed(&mut vim, &commands(lines))
}

/// What is typed: here and there a line is changed and a few are added, what is unsaved goes to the swap file (as it
/// does by itself after 200 letters), and the text is saved.
fn commands(lines: usize) -> String {
    let mut typed = String::new();
    for save in 0..SAVES {
        for place in 0..4 {
            let line = 1 + (save * 7919 + place * 104_729) % lines.max(1);
            let _ = writeln!(typed, "{line}s/$/ (changed in save {save})/");
            let _ =
                writeln!(typed, "{line}append\nA line that was added here, the {place}th of save {save}.\n.");
        }
        typed.push_str("preserve\nwrite\n");
    }
    typed.push_str("quit\n");
    typed
}

/// Makes an office document: text in XML, deflated, and pictures.
pub(super) fn make_office(text: &Path, document: &Path) -> anyhow::Result<()> {
    office(Duration::from_secs(60), &["make".as_ref(), document.as_ref(), text.as_ref()])
}

/// Edits and saves it as office programs do.
pub(super) fn office_saves(document: &Path, limit: Duration) -> anyhow::Result<()> {
    office(limit, &["save".as_ref(), document.as_ref(), SAVES.to_string().as_ref()])
}

fn office(limit: Duration, arguments: &[&std::ffi::OsStr]) -> anyhow::Result<()> {
    feed(limited(limit, "python3").args(["-c", include_str!("office.py")]).args(arguments), "")
}

fn feed(command: &mut Command, input: &str) -> anyhow::Result<()> {
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = piped.spawn().with_context(|| format!("starting {:?}", command.get_program()))?;
    child.stdin.take().context("a pipe")?.write_all(input.as_bytes())?;
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "editing: {}: {}", output.status, said.trim());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: vim, with these settings, saves a text with all changes and keeps the one before as a backup. Without
    /// vim the test says so and does nothing.
    #[test]
    fn vim_saves() -> anyhow::Result<()> {
        if Command::new("vim").arg("--version").output().is_err() {
            eprintln!("left out: there is no vim");
            return Ok(());
        }
        let place = tempfile::tempdir()?;
        let text = place.path().join("document.txt");
        std::fs::write(&text, "a line\n".repeat(1000))?;
        vim(&text, Duration::from_secs(60))?;
        let saved = |path: &Path| -> anyhow::Result<usize> {
            Ok(std::fs::read_to_string(path)?.matches("A line that was added").count())
        };
        assert_eq!(saved(&text)?, SAVES * 4);
        assert_eq!(saved(&place.path().join("document.txt~"))?, (SAVES - 1) * 4);
        Ok(())
    }
}
