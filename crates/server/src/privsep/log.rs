//! The front end's log: lines of information and warnings, which the back end writes down for it.

use super::back_end_client::BackEndClient;
use super::messages::LOG_LINE_BYTES_MAX;
use std::fmt::Write;
use std::sync::Arc;
use tracing::field::{Field, Visit};
use tracing::{Event, Id, Level, Metadata, span};

/// Sends log events to the back end. Spans are ignored: nothing in the front end uses them.
pub(super) struct LogForwarder(pub(super) Arc<BackEndClient>);

struct LogLine(String);

impl Visit for LogLine {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = match field.name() {
            "message" => write!(self.0, "{value:?} "),
            name => write!(self.0, "{name}={value:?} "),
        };
    }
}

impl tracing::Subscriber for LogForwarder {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO && metadata.target().starts_with("holdfast")
    }

    fn new_span(&self, _span: &span::Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &span::Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = LogLine(String::new());
        event.record(&mut line);
        let mut text = line.0.trim_end().to_owned();
        let cut = (0..=LOG_LINE_BYTES_MAX.min(text.len())).rev().find(|cut| text.is_char_boundary(*cut));
        text.truncate(cut.unwrap_or(0));
        self.0.say(*event.metadata().level() <= Level::WARN, text);
    }

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}
