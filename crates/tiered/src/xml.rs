//! The XML in a store's replies: listings, uploads in parts, errors.

use serde::Deserialize;

/// Most bytes of an error reply that are read.
const REFUSAL_BYTES_MAX: usize = 16 << 10;

/// A reply, by the name of its outermost element.
#[derive(Deserialize)]
pub(crate) enum Document {
    ListBucketResult(ListBucketResult),
    ListMultipartUploadsResult(ListMultipartUploadsResult),
    InitiateMultipartUploadResult(InitiateMultipartUploadResult),
    CompleteMultipartUploadResult(Anything),
    CopyPartResult(CopyPartResult),
    Error(Refusal),
}

/// A page of a listing.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct ListBucketResult {
    #[serde(default)]
    pub is_truncated: bool,
    pub next_continuation_token: Option<String>,
    #[serde(default)]
    pub contents: Vec<ListedKey>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct ListedKey {
    pub key: String,
    pub size: u64,
}

/// Uploads in parts that were begun but not completed.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct ListMultipartUploadsResult {
    #[serde(default)]
    pub upload: Vec<Upload>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Upload {
    pub key: String,
    pub upload_id: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct InitiateMultipartUploadResult {
    pub upload_id: String,
}

#[derive(Deserialize)]
pub(crate) struct CopyPartResult {
    #[serde(rename = "ETag")]
    pub tag: String,
}

/// An element whose contents do not matter.
#[derive(Deserialize)]
pub(crate) struct Anything {}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Refusal {
    #[serde(default)]
    code: String,
    #[serde(default)]
    message: String,
}

/// A body that cannot be parsed; the text has no control characters.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("its answer is not understood: {0}")]
pub(crate) struct AnswerError(String);

/// Parses a reply. A truncated reply, or one of another kind, is an error.
pub(crate) fn parse(body: &[u8]) -> Result<Document, AnswerError> {
    quick_xml::de::from_str(&String::from_utf8_lossy(body))
        .map_err(|error| AnswerError(clean(&error.to_string())))
}

/// Code and message of an error reply, without control characters; empty if it has none.
pub fn refusal_of(body: &[u8]) -> (String, String) {
    match parse(&body[..body.len().min(REFUSAL_BYTES_MAX)]) {
        Ok(Document::Error(Refusal { code, message })) => (clean(&code), clean(&message)),
        _ => (String::new(), String::new()),
    }
}

fn clean(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: listings, uploads and errors of real stores are parsed, with namespaces, entities and unknown
    /// elements in between; a truncated reply is not taken for a short one, nor an error for a listing.
    #[test]
    fn answers_are_read() {
        let listing = r#"<?xml version="1.0" encoding="UTF-8"?>
<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>b</Name><IsTruncated>true</IsTruncated>
<Contents><Key>a&amp;b&#39;</Key><ETag>&quot;x&quot;</ETag><Size>7</Size></Contents><CommonPrefixes><Prefix>p/</Prefix></CommonPrefixes>
<Contents><Key>c</Key><Size>0</Size></Contents><NextContinuationToken>on=</NextContinuationToken></ListBucketResult>"#;
        let Ok(Document::ListBucketResult(page)) = parse(listing.as_bytes()) else { panic!("a listing") };
        let keys: Vec<_> = page.contents.iter().map(|one| (&*one.key, one.size)).collect();
        assert_eq!(keys, [("a&b'", 7), ("c", 0)]);
        assert!(page.is_truncated && page.next_continuation_token.as_deref() == Some("on="));
        for length in 0..listing.len() {
            assert!(parse(&listing.as_bytes()[..length]).is_err(), "cut off at {length}");
        }
        let empty = parse(b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>");
        assert!(matches!(empty, Ok(Document::ListBucketResult(page)) if page.contents.is_empty()));
        let no_size = "<ListBucketResult><Contents><Key>a</Key></Contents></ListBucketResult>";
        assert!(parse(no_size.as_bytes()).is_err());
        let uploads = "<ListMultipartUploadsResult><Upload><Key>k</Key><UploadId>u</UploadId></Upload></ListMultipartUploadsResult>";
        let Ok(Document::ListMultipartUploadsResult(found)) = parse(uploads.as_bytes()) else {
            panic!("uploads")
        };
        assert_eq!((&*found.upload[0].key, &*found.upload[0].upload_id), ("k", "u"));
        let done = "<CompleteMultipartUploadResult><Location>l</Location><ETag>\"x\"</ETag></CompleteMultipartUploadResult>";
        assert!(matches!(parse(done.as_bytes()), Ok(Document::CompleteMultipartUploadResult(_))));
        let refused = "<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Please\u{7} wait</Message><Key>k</Key></Error>";
        assert_eq!(refusal_of(refused.as_bytes()), ("SlowDown".to_owned(), "Please wait".to_owned()));
        assert_eq!(refusal_of(b"<html>no</html>"), (String::new(), String::new()));
    }
}
