//! The addresses by which people name mirrors.

use super::{Directory, Http, Mirror};
use std::path::Path;
use std::sync::Arc;

/// Why something does not name a mirror.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{address}' names no mirror: {why}")]
pub struct AddressError {
    /// The address that was given.
    pub address: String,
    /// What is wrong with the address, and how it should be.
    pub why: String,
}

/// The mirror that `address` names: `https://HOST/PATH/`, `http://HOST:PORT/PATH/`,
/// `s3://BUCKET/PREFIX?endpoint=URL`, `/DIRECTORY` or `file:///DIRECTORY`. No request is sent to it yet.
///
/// # Errors
/// [`AddressError`].
pub fn parse(address: &str) -> Result<Arc<dyn Mirror>, AddressError> {
    let wrong = |why: &str| AddressError { address: address.to_owned(), why: why.to_owned() };
    if let Some(path) = address.strip_prefix("file://") {
        if !path.starts_with('/') {
            return Err(wrong("only directories of this machine can be named so: file:///DIRECTORY"));
        }
        // It would be ambiguous whether a percent sign is an escape; a directory can be named without a URL.
        if path.contains('%') {
            return Err(wrong("escapes such as %20 are not understood here; give the directory itself"));
        }
        return Ok(Arc::new(Directory::new(Path::new(path))));
    }
    if address.starts_with('/') {
        return Ok(Arc::new(Directory::new(Path::new(address))));
    }
    if address.starts_with("https://") || address.starts_with("http://") {
        return Ok(Arc::new(Http::new(address)?));
    }
    if address.starts_with("s3://") {
        return Ok(Arc::new(Http::of_bucket(address)?));
    }
    Err(wrong(
        "a mirror is https://HOST/PATH/, http://HOST/PATH/, s3://BUCKET/PREFIX?endpoint=URL or an absolute /DIRECTORY",
    ))
}
