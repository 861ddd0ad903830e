//! Replaces `holdfast server convert` in a program that was built without it.

use crate::args::ServerConvert;
use crate::output::Format;
use holdfast_failure::{Outcome, built_without};

/// `holdfast server convert`
pub fn run(_: &ServerConvert, _: Format) -> Outcome {
    Err(built_without("convert"))
}
