//! Output: text for people, JSON for programs, and progress indicators.

use holdfast_failure::{Exit, Failure, Outcome};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::io::{IsTerminal, Write};
use std::time::Duration;

/// How data is printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// Text for people.
    Text,
    /// One JSON value.
    Json,
}

impl Format {
    /// Prints `value` as JSON, or the result of `text`.
    ///
    /// # Errors
    /// [`Exit::Io`] if standard output cannot be written.
    pub fn print<T: Serialize>(self, value: &T, text: impl FnOnce(&T) -> String) -> Outcome {
        let mut out = match self {
            Format::Json => serde_json::to_string_pretty(value).map_err(|error| {
                Failure::new(Exit::Internal, format!("the answer has no JSON form: {error}"))
            })?,
            Format::Text => text(value),
        };
        while out.ends_with('\n') {
            out.pop();
        }
        if out.is_empty() { Ok(()) } else { line(&out) }
    }

    /// Prints a failure to standard error.
    pub fn print_failure(self, failure: &Failure) {
        let text = match self {
            Format::Json => {
                serde_json::json!({ "error": { "exit_code": failure.code as u8, "code": failure.code,
                    "message": failure.message, "hint": failure.hint } })
                .to_string()
            }
            Format::Text => format!("holdfast: {failure}"),
        };
        let _ = writeln!(std::io::stderr(), "{text}");
    }
}

/// Prints one line to standard output.
///
/// # Errors
/// [`Exit::Io`] if standard output cannot be written.
pub fn line(text: &str) -> Outcome {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        // The reader closed the pipe because it has read enough.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(|error| Failure::new(Exit::Io, format!("standard output: {error}"))),
    }
}

/// A spinner, if standard error is a terminal.
pub fn progress(what: &str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{spinner} {msg} {elapsed}")
        .unwrap_or_else(|_| ProgressStyle::default_spinner());
    let bar = ProgressBar::new_spinner().with_style(style).with_message(what.to_owned());
    bar.enable_steady_tick(Duration::from_millis(120));
    bar
}

/// A progress bar that counts bytes, if standard error is a terminal.
pub fn bytes_bar(what: &str) -> ProgressBar {
    let template = "{spinner} {msg} {bytes}/{total_bytes} [{wide_bar}] {eta}";
    let bar = progress(what);
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

/// Every field of a JSON value with its name, nested names joined.
pub fn flatten(name: &str, value: &serde_json::Value, rows: &mut Vec<Vec<String>>) {
    use serde_json::Value;
    let join = |field: &str| match name {
        "" => field.replace('_', " "),
        _ => format!("{name}: {}", field.replace('_', " ")),
    };
    match value {
        Value::Object(fields) => fields.iter().for_each(|(field, value)| flatten(&join(field), value, rows)),
        Value::Array(items) => {
            items
                .iter()
                .enumerate()
                .for_each(|(at, value)| flatten(&join(&(at + 1).to_string()), value, rows));
        }
        Value::Null => rows.push(vec![name.to_owned(), "unknown".to_owned()]),
        Value::String(text) => rows.push(vec![name.to_owned(), clean(text)]),
        Value::Bool(_) | Value::Number(_) => rows.push(vec![name.to_owned(), value.to_string()]),
    }
}

/// Rows as text, with aligned columns.
pub fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    rows.iter()
        .map(|row| {
            let cells: Vec<String> = row
                .iter()
                .zip(&widths)
                .map(|(cell, width)| format!("{cell}{}", " ".repeat(width - cell.chars().count())))
                .collect();
            cells.join("  ").trim_end().to_owned()
        })
        .collect::<Vec<_>>()
        .join("\n")
}

/// Makes untrusted text fit for a terminal: replaces control characters.
pub fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: columns are aligned and lines have no blanks at their ends; control characters never reach a
    /// terminal.
    #[test]
    fn tables_and_foreign_text() {
        let rows = [vec!["a".to_owned(), "b".to_owned()], vec!["long".to_owned(), String::new()]];
        assert_eq!(table(&rows), "a     b\nlong");
        assert_eq!(clean("a\x1b[31mb"), "a\u{fffd}[31mb");
    }
}
