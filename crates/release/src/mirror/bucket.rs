//! Mirrors in a bucket that is named `s3://`. They differ from web servers: requests are signed if there are
//! credentials, and the error codes of buckets are interpreted. Without credentials, requests are like those
//! to any web server.

use super::{AddressError, Fault, printable};
use crate::layout;
use holdfast_tiered::{
    BucketAddress, Credentials, CredentialsError, Durability, Location, UnsignedRequest, refusal_of, sha256,
    signature_headers,
};
use std::time::{SystemTime, UNIX_EPOCH};
use ureq::http::StatusCode;

/// A bucket, and how requests to it are made.
pub struct BucketMirror {
    address: BucketAddress,
    location: Location,
    region: String,
}

/// The headers of a signed request, and the origin of the credentials.
pub struct SignedHeaders {
    /// Headers besides those that every request has.
    pub headers: Vec<(&'static str, String)>,
    /// Where the credentials come from, in words.
    whose: String,
}

impl BucketMirror {
    /// The bucket at an address.
    ///
    /// # Errors
    /// The text is no address of a bucket, or has options that only servers have.
    pub fn new(text: &str) -> Result<BucketMirror, AddressError> {
        let wrong = |why: String| AddressError { address: text.to_owned(), why };
        let address: BucketAddress = text.parse().map_err(|error| wrong(format!("{error}")))?;
        if address.durability != Durability::Local || address.cache_bytes.is_some() {
            return Err(wrong("durability and cache are for the blocks of a server".to_owned()));
        }
        Ok(BucketMirror { location: address.location(), region: address.signing_region(), address })
    }

    /// The URL of its objects, with a slash at the end.
    pub fn url(&self) -> String {
        self.address.url()
    }

    /// The mirror's name for messages.
    pub fn name(&self) -> String {
        self.address.to_string()
    }

    /// Signs a request for a file. Credentials are looked up each time, so that new ones take effect at once.
    pub fn sign(&self, file: &str, range: Option<&str>) -> Result<SignedHeaders, Fault> {
        let credentials = match Credentials::find() {
            Ok(credentials) => credentials,
            Err(none @ CredentialsError::None { .. }) => {
                return Ok(SignedHeaders { headers: Vec::new(), whose: none.to_string() });
            }
            Err(error) => return Err(Fault::Unreachable(error.to_string())),
        };
        let path = format!("{}/{}{file}", self.location.path, self.address.prefix);
        let headers: Vec<_> = range.iter().map(|range| ("range", *range)).collect();
        let signing = UnsignedRequest {
            method: "GET",
            host: &self.location.host,
            path: &path,
            query: &[],
            headers: &headers,
            payload: &sha256(b""),
            region: &self.region,
            now_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        };
        let headers = signature_headers(&signing, &credentials);
        Ok(SignedHeaders { headers, whose: format!("the credentials are from {}", credentials.from) })
    }

    /// Interprets a refusal; `None` if it means nothing more than that of any web server.
    pub fn refusal(
        &self,
        file: &str,
        status: StatusCode,
        said: &[u8],
        signed: &SignedHeaders,
    ) -> Option<Fault> {
        let (code, _) = refusal_of(said);
        let code = printable(&code);
        let refuses = |why: &str| {
            Some(Fault::Unreachable(format!("it refuses ({status} {code}); {}{why}", signed.whose)))
        };
        match code.as_str() {
            "NoSuchBucket" => Some(Fault::Unreachable(format!(
                "there is no bucket {}: correct its name, the endpoint or the region",
                self.address.bucket
            ))),
            "RequestTimeTooSkewed" | "RequestExpired" => refuses(". The clocks differ: set this machine's"),
            "SignatureDoesNotMatch" | "InvalidAccessKeyId" | "ExpiredToken" | "InvalidToken" => refuses(""),
            _ if status.is_redirection() || status == StatusCode::BAD_REQUEST => {
                refuses(&format!(". Requests are signed for the region {}: is it the bucket's?", self.region))
            }
            // Every release has these files, so a refusal does not mean that the file is missing.
            _ if status == StatusCode::FORBIDDEN && (file == layout::ROOT || file == layout::keys(1)) => {
                refuses(". They may not read there, or there is no release at this prefix")
            }
            _ => None,
        }
    }
}
