//! Parses arguments that may contain a secret: error messages do not repeat them.

use clap::builder::TypedValueParser;
use clap::error::ErrorKind;
use clap::{Arg, Command, Error};
use holdfast_server::LocationError;
use std::ffi::OsStr;

/// Parses with a function whose errors do not contain the text.
#[derive(Clone)]
pub struct Unrepeated<T>(pub fn(&str) -> Result<T, LocationError>);

impl<T: Clone + Send + Sync + 'static> TypedValueParser for Unrepeated<T> {
    type Value = T;

    fn parse_ref(&self, command: &Command, argument: Option<&Arg>, value: &OsStr) -> Result<T, Error> {
        let text = value.to_str().ok_or_else(|| "it is no text".to_owned());
        text.and_then(|text| (self.0)(text).map_err(|error| error.to_string())).map_err(|why| {
            let name = argument.and_then(Arg::get_long).unwrap_or("argument");
            Error::raw(ErrorKind::ValueValidation, format!("invalid value for '--{name}': {why}\n"))
                .with_cmd(command)
        })
    }
}
