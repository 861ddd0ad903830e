//! Building a C program, and building it again after a header was changed.

use super::place::limited;
use super::tree;
use anyhow::{Context, ensure};
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

/// Objects with debugging information, a library of them, and one to link with, as in development.
const MAKEFILE: &str = "\
OBJECTS := $(patsubst %.c,%.o,$(wildcard *.c))
all: program.a program.so
program.a: $(OBJECTS)
\tar rcs $@ $^
program.so: $(OBJECTS)
\tgcc -shared -o $@ $^ -lm -ldl
%.o: %.c $(wildcard *.h)
\tgcc -O1 -g -fPIC -c -o $@ $<
";

/// Copies the sources to the mount.
pub(super) fn prepare(source: &Path, at: &Path) -> anyhow::Result<()> {
    tree::copy(source, at)?;
    tree::write(&at.join("Makefile"), MAKEFILE.as_bytes())
}

/// Adds a line at the top of a header, so that everything that includes it is compiled again.
pub(super) fn touch(header: &Path) -> anyhow::Result<()> {
    let text = fs::read_to_string(header).with_context(|| header.display().to_string())?;
    tree::write(header, format!("/* One more line. */\n{text}").as_bytes())
}

pub(super) fn make(at: &Path, limit: Duration) -> anyhow::Result<()> {
    let output = limited(limit, "make").arg("-C").arg(at).stdin(Stdio::null()).output().context("make")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "make: {}: {}", output.status, said.trim());
    Ok(())
}
