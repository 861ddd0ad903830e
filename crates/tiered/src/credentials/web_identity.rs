//! A role by a web identity (EKS, GitHub, GitLab, ...). An identity provider issues a token in a file; the
//! Security Token Service (STS) exchanges it for credentials of the role. The file is read each time, because
//! its owner renews it.

use super::Credentials;
use super::identity::{
    Environment, Identity, IdentityError, Service, TemporaryCredentials, printable, refusal, temporary,
};
use crate::sign::encoded;
use serde::Deserialize;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use ureq::http::Request;
use zeroize::Zeroizing;

/// How long one reply may take.
const PATIENCE: Duration = Duration::from_secs(10);

struct WebIdentity {
    token_file: String,
    role: String,
    session: Option<String>,
    /// URL of the service.
    endpoint: String,
}

/// The role and the file that the environment names.
pub(super) fn of(set: Environment<'_>) -> Result<Box<dyn Identity>, IdentityError> {
    let (token_file, role) = match (set("AWS_WEB_IDENTITY_TOKEN_FILE"), set("AWS_ROLE_ARN")) {
        (Some(token_file), Some(role)) => (token_file, role),
        (Some(_), None) => {
            let why =
                "AWS_WEB_IDENTITY_TOKEN_FILE is set, and AWS_ROLE_ARN, which says for which role, is not";
            return Err(IdentityError::Refused(why.to_owned()));
        }
        (None, _) => {
            return Err(IdentityError::Absent("AWS_WEB_IDENTITY_TOKEN_FILE is not set".to_owned()));
        }
    };
    let region = set("AWS_REGION").or_else(|| set("AWS_DEFAULT_REGION"));
    let usual = || match region {
        Some(region) if region.starts_with("cn-") => format!("https://sts.{region}.amazonaws.com.cn"),
        Some(region) => format!("https://sts.{region}.amazonaws.com"),
        None => "https://sts.amazonaws.com".to_owned(),
    };
    let endpoint = set("AWS_ENDPOINT_URL_STS").unwrap_or_else(usual);
    Ok(Box::new(WebIdentity { token_file, role, session: set("AWS_ROLE_SESSION_NAME"), endpoint }))
}

/// A reply of STS, by the name of its outermost element.
#[derive(Deserialize)]
enum StsDocument {
    AssumeRoleWithWebIdentityResponse(Response),
    ErrorResponse(ErrorResponse),
}

#[derive(Deserialize)]
struct Response {
    #[serde(rename = "AssumeRoleWithWebIdentityResult")]
    result: RoleResult,
}

#[derive(Deserialize)]
struct RoleResult {
    #[serde(rename = "Credentials")]
    credentials: XmlCredentials,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct XmlCredentials {
    access_key_id: String,
    secret_access_key: String,
    session_token: String,
    expiration: String,
}

#[derive(Deserialize)]
struct ErrorResponse {
    #[serde(rename = "Error")]
    error: StsError,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct StsError {
    #[serde(default)]
    code: String,
    #[serde(default)]
    message: String,
}

impl Identity for WebIdentity {
    fn fetch(&self, now: SystemTime) -> Result<TemporaryCredentials, IdentityError> {
        let WebIdentity { token_file, role, endpoint, .. } = self;
        let token = std::fs::read_to_string(token_file).map(Zeroizing::new).map_err(|error| {
            IdentityError::Refused(format!(
                "AWS_WEB_IDENTITY_TOKEN_FILE={token_file} cannot be read: {error}"
            ))
        })?;
        let now_ms = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
        let session = self.session.clone().unwrap_or_else(|| format!("holdfast-{now_ms}"));
        let form = format!(
            "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn={}&RoleSessionName={}&WebIdentityToken={}",
            encoded(role, false),
            encoded(&session, false),
            encoded(token.trim(), false)
        );
        let request = Request::post(format!("{}/", endpoint.trim_end_matches('/')))
            .header("content-type", "application/x-www-form-urlencoded")
            .body(form.into_bytes())
            .map_err(|_| IdentityError::Refused(format!("AWS_ENDPOINT_URL_STS={endpoint} is no URL")))?;
        let reply = Service::far(endpoint, PATIENCE)
            .ask(&request)
            .map_err(|unreached| IdentityError::Unavailable(format!("{endpoint}: {}", unreached.why())))?;
        let text = Zeroizing::new(String::from_utf8_lossy(&reply.body).into_owned());
        let from = format!("the role {role} ({endpoint})");
        match (reply.status, quick_xml::de::from_str(&text)) {
            (200, Ok(StsDocument::AssumeRoleWithWebIdentityResponse(response))) => {
                let XmlCredentials { access_key_id, secret_access_key, session_token, expiration } =
                    response.result.credentials;
                let credentials = Credentials {
                    key_id: access_key_id,
                    secret: Zeroizing::new(secret_access_key),
                    token: Some(Zeroizing::new(session_token)),
                    from,
                };
                temporary(credentials, &expiration, now)
            }
            (_, Ok(StsDocument::ErrorResponse(ErrorResponse { error }))) => Err(match error.code.as_str() {
                // STS could not reach the identity provider.
                "IDPCommunicationError" => {
                    IdentityError::Unavailable(format!("{endpoint} says {}", printable(&error.code)))
                }
                "ExpiredTokenException" => IdentityError::Unavailable(format!(
                    "{endpoint} says that the token in {token_file} has expired: whoever wrote it must renew it"
                )),
                _ => {
                    let said = printable(&format!("{}: {}", error.code, error.message));
                    refusal(reply.status.max(400), &said, &from)
                }
            }),
            (200, _) => {
                Err(IdentityError::Unavailable(format!("the answer of {endpoint} cannot be understood")))
            }
            (status, _) => Err(refusal(status, "", &from)),
        }
    }
}
