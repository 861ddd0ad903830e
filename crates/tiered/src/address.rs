//! Addresses of buckets: `s3://BUCKET/PREFIX?endpoint=URL&region=NAME&...`.

use std::fmt;
use std::str::FromStr;

/// When stored data is acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Durability {
    /// When the local disk has it; the bucket gets it later.
    #[default]
    Local,
    /// When the bucket has it too.
    Object,
}

/// The bucket and prefix of objects, and the options for them. It has no credentials, so it may be printed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BucketAddress {
    /// Name of the bucket.
    pub bucket: String,
    /// The beginning of all objects' names; it ends with a slash.
    pub prefix: String,
    /// Base of URLs, without a bucket; `None`: Amazon's endpoint of the region.
    pub endpoint: Option<String>,
    /// The region; `None`: that of the environment, or us-east-1.
    pub region: Option<String>,
    /// Whether URLs have the bucket in the path instead of in the host's name; `None`: if an endpoint is
    /// given.
    pub path_style: Option<bool>,
    /// When stored data is acknowledged.
    pub durability: Durability,
    /// Bytes of the local disk for unsent segments and for what was read; `None`: the default.
    pub cache_bytes: Option<u64>,
}

/// The address of a bucket over HTTP.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Location {
    /// Scheme and host, with a port if one was given.
    pub base: String,
    /// The host, as requests name and sign it.
    pub host: String,
    /// The beginning of paths: a slash and the bucket's name, or empty if the host's name has the bucket.
    pub path: String,
}

/// Text that is not the address of a bucket.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("'{text}' is not a bucket's address: {why}. {SHAPE}")]
pub struct AddressError {
    /// The text; without its contents if it has an `@`.
    pub text: String,
    /// Why the text is not an address.
    pub why: String,
}

const SHAPE: &str = "It should read s3://BUCKET/PREFIX?endpoint=https://HOST&region=NAME";

impl AddressError {
    /// The reason, without the text, which may contain a secret.
    pub fn reason(&self) -> String {
        format!("it is not a bucket's address: {}. {SHAPE}", self.why)
    }
}

/// Smallest allowed `cache`, in bytes.
pub const CACHE_BYTES_MIN: u64 = 64 << 20;

impl FromStr for BucketAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<BucketAddress, AddressError> {
        // A secret that a user put into the address must not appear in a message.
        let shown = match text.contains('@') {
            true => "s3://...@...".to_owned(),
            false => text.to_owned(),
        };
        let wrong = |why: &str| AddressError { text: shown.clone(), why: why.to_owned() };
        let rest = text.strip_prefix("s3://").ok_or_else(|| wrong("it does not begin with s3://"))?;
        if rest.contains('@') {
            return Err(wrong(
                "credentials do not belong into it; they are in the environment or in ~/.aws/credentials",
            ));
        }
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
        if !(3..=63).contains(&bucket.len()) || !bucket.chars().all(is_name) {
            return Err(wrong("a bucket's name has 3 to 63 small letters, digits, '-' and '.'"));
        }
        let prefix = prefix.trim_matches('/');
        let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_' | '/');
        let is_dots = |part: &str| part.is_empty() || part == "." || part == "..";
        if prefix.is_empty() {
            return Err(wrong("a prefix is needed: all objects of one store, and no others, are below it"));
        }
        if !prefix.chars().all(is_part) || prefix.split('/').any(is_dots) {
            return Err(wrong("a prefix has letters, digits, '-', '.', '_' and single '/'"));
        }
        if prefix.len() > 512 {
            return Err(wrong("the prefix is longer than 512 bytes"));
        }
        let mut address = BucketAddress {
            bucket: bucket.to_owned(),
            prefix: format!("{prefix}/"),
            endpoint: None,
            region: None,
            path_style: None,
            durability: Durability::Local,
            cache_bytes: None,
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) =
                pair.split_once('=').ok_or_else(|| wrong("after '?' there are pairs KEY=VALUE"))?;
            let value =
                decoded(value).ok_or_else(|| wrong("a '%' is not followed by two hexadecimal digits"))?;
            match key {
                "endpoint" => {
                    let base = value.trim_end_matches('/');
                    let host = base.strip_prefix("https://").or_else(|| base.strip_prefix("http://"));
                    let is_host =
                        |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | ':' | '[' | ']');
                    if !host.is_some_and(|host| !host.is_empty() && host.chars().all(is_host)) {
                        return Err(wrong(
                            "an endpoint is https://HOST or http://HOST, with a port if need be",
                        ));
                    }
                    address.endpoint = Some(base.to_owned());
                }
                "region" => {
                    if value.is_empty() || !value.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
                        return Err(wrong("a region has letters, digits and '-'"));
                    }
                    address.region = Some(value);
                }
                "path_style" => {
                    address.path_style = Some(match value.as_str() {
                        "true" => true,
                        "false" => false,
                        _ => return Err(wrong("path_style is true or false")),
                    });
                }
                "durability" => {
                    address.durability = match value.as_str() {
                        "local" => Durability::Local,
                        "object" => Durability::Object,
                        _ => return Err(wrong("durability is local or object")),
                    };
                }
                "cache" => {
                    let bytes = bytes_of(&value)
                        .ok_or_else(|| wrong("cache is a number of bytes, with K, M, G or T"))?;
                    if bytes < CACHE_BYTES_MIN {
                        return Err(wrong("cache is at least 64M"));
                    }
                    address.cache_bytes = Some(bytes);
                }
                other => {
                    // A word of another form may be a secret, so it is not repeated.
                    let is_word =
                        other.len() <= 16 && other.chars().all(|c| c.is_ascii_lowercase() || c == '_');
                    let what = if is_word { format!("'{other}'") } else { "a part of it".to_owned() };
                    return Err(wrong(&format!(
                        "{what} is not known; what is: endpoint, region, path_style, durability, cache"
                    )));
                }
            }
        }
        Ok(address)
    }
}

impl fmt::Display for BucketAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s3://{}/{}", self.bucket, self.prefix.trim_end_matches('/'))?;
        let mut pairs = Vec::new();
        pairs.extend(self.endpoint.as_ref().map(|endpoint| format!("endpoint={endpoint}")));
        pairs.extend(self.region.as_ref().map(|region| format!("region={region}")));
        pairs.extend(self.path_style.map(|path_style| format!("path_style={path_style}")));
        if self.durability == Durability::Object {
            pairs.push("durability=object".to_owned());
        }
        pairs.extend(self.cache_bytes.map(|bytes| format!("cache={bytes}")));
        if !pairs.is_empty() {
            write!(f, "?{}", pairs.join("&"))?;
        }
        Ok(())
    }
}

impl BucketAddress {
    /// Whether both are the same bucket and prefix, whatever their options.
    pub fn is_same_place(&self, other: &BucketAddress) -> bool {
        (&self.bucket, &self.prefix, &self.endpoint) == (&other.bucket, &other.prefix, &other.endpoint)
    }

    /// A prefix below this one, with the same options.
    pub fn below(&self, part: &str) -> BucketAddress {
        BucketAddress { prefix: format!("{}{part}/", self.prefix), ..self.clone() }
    }

    /// Bucket and prefix, for messages.
    pub fn place(&self) -> String {
        format!("s3://{}/{}", self.bucket, self.prefix.trim_end_matches('/'))
    }

    /// The address of its objects over HTTP.
    pub fn location(&self) -> Location {
        let region = self.signing_region();
        let endpoint = self.endpoint.clone().unwrap_or_else(|| format!("https://s3.{region}.amazonaws.com"));
        let (scheme, host) = endpoint.split_once("://").unwrap_or(("https", &endpoint));
        let is_path_style = self.path_style.unwrap_or(self.endpoint.is_some());
        let (host, path) = match is_path_style {
            true => (host.to_owned(), format!("/{}", self.bucket)),
            false => (format!("{}.{host}", self.bucket), String::new()),
        };
        let base = format!("{scheme}://{host}");
        // HTTP clients leave the default port out of the `Host` header, so it must not be signed either.
        let usual = if scheme == "https" { ":443" } else { ":80" };
        let host = host.strip_suffix(usual).unwrap_or(&host).to_owned();
        Location { base, host, path }
    }

    /// The URL at which everybody can read the objects, if they are public. No character of a prefix needs to
    /// be encoded.
    pub fn url(&self) -> String {
        let Location { base, path, .. } = self.location();
        format!("{base}{path}/{}", self.prefix)
    }

    /// The region that requests are signed for.
    pub fn signing_region(&self) -> String {
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let region = self.region.clone().or_else(|| set("AWS_REGION")).or_else(|| set("AWS_DEFAULT_REGION"));
        region.unwrap_or_else(|| "us-east-1".to_owned())
    }
}

fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

fn bytes_of(text: &str) -> Option<u64> {
    let (number, shift) = match text.chars().last()? {
        'K' => (&text[..text.len() - 1], 10),
        'M' => (&text[..text.len() - 1], 20),
        'G' => (&text[..text.len() - 1], 30),
        'T' => (&text[..text.len() - 1], 40),
        _ => (text, 0),
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: an address is parsed correctly, and formatted as it was.
    #[test]
    fn addresses_are_read() {
        let text =
            "s3://team-blocks/hf/one?endpoint=http://127.0.0.1:17480&region=eu-1&durability=object&cache=2G";
        let address: BucketAddress = text.parse().unwrap();
        assert_eq!((address.bucket.as_str(), address.prefix.as_str()), ("team-blocks", "hf/one/"));
        assert_eq!(address.endpoint.as_deref(), Some("http://127.0.0.1:17480"));
        assert_eq!((address.durability, address.cache_bytes), (Durability::Object, Some(2 << 30)));
        assert_eq!(address.to_string().parse::<BucketAddress>().unwrap(), address);
        let encoded: BucketAddress = "s3://abc/p?endpoint=https%3A%2F%2Fs3.example.org%2F".parse().unwrap();
        assert_eq!(encoded.endpoint.as_deref(), Some("https://s3.example.org"));
        assert_eq!((encoded.prefix.as_str(), encoded.place().as_str()), ("p/", "s3://abc/p"));
    }

    /// Proves: URLs of objects are those of real stores, with the bucket in the path or in the host's name.
    #[test]
    fn objects_are_located() {
        let url = |text: &str| text.parse::<BucketAddress>().unwrap().url();
        assert_eq!(url("s3://abc/p/q?endpoint=https://s3.example.org"), "https://s3.example.org/abc/p/q/");
        assert_eq!(url("s3://abc/p?endpoint=http://h:80&path_style=false"), "http://abc.h:80/p/");
        assert_eq!(url("s3://abc/p?region=eu-1"), "https://abc.s3.eu-1.amazonaws.com/p/");
        let address: BucketAddress = "s3://abc/p?endpoint=http://h:80".parse().unwrap();
        assert_eq!(address.location().host, "h");
    }

    /// Proves: text that is not an address is refused with an explanation, which repeats no secret in it.
    #[test]
    fn other_text_is_refused() {
        for text in [
            "http://abc",
            "s3://",
            "s3://abc",
            "s3://abc/",
            "s3://AB/x",
            "s3://ab",
            "s3://abc/x//y",
            "s3://abc/../y",
            "s3://abc/x y",
            "s3://abc/p?endpoint=ftp://x",
            "s3://abc/p?endpoint=http://",
            "s3://abc/p?cache=1M",
            "s3://abc/p?cache=x",
            "s3://abc/p?durability=maybe",
            "s3://abc/p?what=1",
            "s3://abc/p?region",
            "s3://abc/p?region=%zz",
            "s3://abc/p?path_style=1",
            "s3://abc/p?cache=99999999999999T",
            "s3://abc/p?endpoint=http://h/path",
        ] {
            assert!(text.parse::<BucketAddress>().is_err(), "{text}");
        }
        let error = "s3://AKIA:hidden@abc/x".parse::<BucketAddress>().unwrap_err().to_string();
        assert!(!error.contains("hidden"), "{error}");
        for text in
            ["s3://abc/p?region=eu 1hidden", "s3://abc/p?hidden/bXKey=", "s3://abc/hidden key", "s3://hidden"]
        {
            let reason = text.parse::<BucketAddress>().unwrap_err().reason();
            assert!(!reason.contains("hidden") && reason.contains("s3://BUCKET/PREFIX"), "{reason}");
        }
    }
}
