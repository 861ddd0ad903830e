//! Signatures of requests: AWS Signature Version 4, in headers. The time is an argument.
//!
//! The SHA-256 of the body is signed, so the store refuses a body that was altered on the way.

use crate::credentials::Credentials;
use hmac::{Hmac, Mac};
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

/// The parts of a request that its signature covers.
#[derive(Clone, Copy, Debug)]
pub struct UnsignedRequest<'a> {
    /// The method.
    pub method: &'a str,
    /// Host, with a port if it is not the default one.
    pub host: &'a str,
    /// The path, encoded as in the request.
    pub path: &'a str,
    /// Pairs of the query, encoded as in the request, sorted by name.
    pub query: &'a [(String, String)],
    /// Further headers to be signed: names in small letters.
    pub headers: &'a [(&'a str, &'a str)],
    /// SHA-256 of the body, in hexadecimal digits.
    pub payload: &'a str,
    /// Region of the bucket.
    pub region: &'a str,
    /// Seconds since 1970.
    pub now_s: u64,
}

/// SHA-256 in hexadecimal digits.
pub fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Percent-encodes all characters except letters, digits, `-`, `.`, `_` and `~`; in a path, slashes stay too.
pub(crate) fn encoded(text: &str, is_path: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(byte as char),
            b'/' if is_path => out.push('/'),
            byte => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// The headers to send with a request, in addition to its host.
pub fn signature_headers(
    request: &UnsignedRequest<'_>,
    credentials: &Credentials,
) -> Vec<(&'static str, String)> {
    let time = timestamp(request.now_s);
    let mut headers: Vec<(&str, &str)> =
        vec![("host", request.host), ("x-amz-content-sha256", request.payload), ("x-amz-date", &time)];
    headers.extend(credentials.token.as_ref().map(|token| ("x-amz-security-token", token.as_str())));
    headers.extend(request.headers);
    headers.sort_unstable();
    let names = headers.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(";");
    let lines: String = headers.iter().map(|(name, value)| format!("{name}:{}\n", value.trim())).collect();
    let pairs = request.query.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>();
    let canonical = format!(
        "{}\n{}\n{}\n{lines}\n{names}\n{}",
        request.method,
        request.path,
        pairs.join("&"),
        request.payload
    );
    let day = &time[..8];
    let scope = format!("{day}/{}/s3/aws4_request", request.region);
    let text = format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{}", sha256(canonical.as_bytes()));
    let first = zeroize::Zeroizing::new(format!("AWS4{}", credentials.secret.as_str()));
    let mut key = mac(first.as_bytes(), day.as_bytes());
    for part in [request.region, "s3", "aws4_request"] {
        key = mac(&key, part.as_bytes());
    }
    let signature = hex(&mac(&key, text.as_bytes()));
    let authorization = format!(
        "AWS4-HMAC-SHA256 Credential={}/{scope}, SignedHeaders={names}, Signature={signature}",
        credentials.key_id
    );
    let mut sent = vec![
        ("authorization", authorization),
        ("x-amz-content-sha256", request.payload.to_owned()),
        ("x-amz-date", time.clone()),
    ];
    sent.extend(credentials.token.as_ref().map(|token| ("x-amz-security-token", token.to_string())));
    sent
}

fn mac(key: &[u8], text: &[u8]) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("keys of any length are good");
    mac.update(text);
    mac.finalize().into_bytes().to_vec()
}

/// A time as in `20130524T000000Z`.
pub(crate) fn timestamp(now_s: u64) -> String {
    let time = i64::try_from(now_s).ok().and_then(|seconds| Timestamp::from_second(seconds).ok());
    time.unwrap_or(Timestamp::MAX).strftime("%Y%m%dT%H%M%SZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    /// 24 May 2013, 00:00.
    const THEN: u64 = 1_369_353_600;

    fn signed(
        method: &str,
        path: &str,
        query: &[(&str, &str)],
        headers: &[(&str, &str)],
        payload: &str,
    ) -> String {
        let credentials = Credentials {
            key_id: "AKIAIOSFODNN7EXAMPLE".into(),
            secret: zeroize::Zeroizing::new("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".into()),
            token: None,
            from: "Amazon's examples".into(),
        };
        let query: Vec<_> =
            query.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let request = UnsignedRequest {
            method,
            host: "examplebucket.s3.amazonaws.com",
            path,
            query: &query,
            headers,
            payload,
            region: "us-east-1",
            now_s: THEN,
        };
        let authorization = signature_headers(&request, &credentials).remove(0).1;
        authorization.rsplit_once('=').unwrap().1.to_owned()
    }

    /// Proves: the signatures of Amazon's published examples are reproduced ("Signature Calculations for the
    /// Authorization Header: Transferring Payload in a Single Chunk").
    #[test]
    fn published_examples_are_met() {
        assert_eq!(
            signed("GET", "/test.txt", &[], &[("range", "bytes=0-9")], EMPTY),
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
        );
        assert_eq!(
            signed("GET", "/", &[("lifecycle", "")], &[], EMPTY),
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"
        );
        assert_eq!(
            signed("GET", "/", &[("max-keys", "2"), ("prefix", "J")], &[], EMPTY),
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"
        );
        let headers =
            [("date", "Fri, 24 May 2013 00:00:00 GMT"), ("x-amz-storage-class", "REDUCED_REDUNDANCY")];
        assert_eq!(
            signed(
                "PUT",
                &encoded("/test$file.text", true),
                &[],
                &headers,
                &sha256(b"Welcome to Amazon S3.")
            ),
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"
        );
    }

    /// Proves: times are formatted correctly, over a leap day and the end of a century.
    #[test]
    fn times_are_written() {
        for (seconds, text) in [
            (0, "19700101T000000Z"),
            (THEN, "20130524T000000Z"),
            (951_782_400, "20000229T000000Z"),
            (4_107_542_399, "21000228T235959Z"),
            (4_107_542_400, "21000301T000000Z"),
        ] {
            assert_eq!(timestamp(seconds), text);
        }
    }
}
