//! The role of a container, from the service that its host has for that purpose: ECS, or EKS with Pod
//! Identity.
//!
//! Attack answered: an address in the environment that would send the token over the network in plain text.
//! Without TLS, requests go only to this machine and to the addresses of those services.

use super::identity::{
    Environment, Identity, IdentityError, Service, TemporaryCredentials, of_json, patience,
};
use std::net::IpAddr;
use std::time::{Duration, SystemTime};
use ureq::http::{Request, Uri};
use zeroize::Zeroizing;

/// How long one reply may take, if the environment does not say so.
const PATIENCE: Duration = Duration::from_secs(2);
/// The service of ECS, to which the relative address is added.
const ECS: &str = "http://169.254.170.2";
/// Addresses of services that may be used without TLS: those of ECS and EKS.
const PLAIN: [&str; 3] = ["169.254.170.2", "169.254.170.23", "fd00:ec2::23"];

struct ContainerRole {
    url: String,
    authorization: Option<Zeroizing<String>>,
    /// How long one reply may take.
    patience: Duration,
}

/// The service that the environment names.
pub(super) fn of(set: Environment<'_>) -> Result<Box<dyn Identity>, IdentityError> {
    let url = match (set("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"), set("AWS_CONTAINER_CREDENTIALS_FULL_URI"))
    {
        (Some(path), _) if path.starts_with('/') => format!("{ECS}{path}"),
        (Some(_), _) => {
            let why = "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI does not begin with a slash";
            return Err(IdentityError::Refused(why.to_owned()));
        }
        (None, Some(url)) => url,
        (None, None) => {
            let why = "neither AWS_CONTAINER_CREDENTIALS_RELATIVE_URI nor AWS_CONTAINER_CREDENTIALS_FULL_URI is set";
            return Err(IdentityError::Absent(why.to_owned()));
        }
    };
    if !may_be_asked(&url) {
        return Err(IdentityError::Refused(
            "AWS_CONTAINER_CREDENTIALS_FULL_URI is neither https://... nor http:// with an address of this machine or of \
             the services of ECS and EKS"
                .to_owned(),
        ));
    }
    let authorization = match set("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE") {
        Some(file) => match std::fs::read_to_string(&file) {
            Ok(text) => Some(Zeroizing::new(text.trim_end().to_owned())),
            Err(error) => {
                let why = format!("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE={file} cannot be read: {error}");
                return Err(IdentityError::Refused(why));
            }
        },
        None => set("AWS_CONTAINER_AUTHORIZATION_TOKEN").map(Zeroizing::new),
    };
    Ok(Box::new(ContainerRole { url, authorization, patience: patience(set).unwrap_or(PATIENCE) }))
}

/// Whether a token may be sent to this URL.
fn may_be_asked(url: &str) -> bool {
    let Ok(uri) = url.parse::<Uri>() else { return false };
    let host = uri.host().unwrap_or("").trim_matches(['[', ']']);
    let is_near = || {
        host.eq_ignore_ascii_case("localhost")
            || PLAIN.contains(&host)
            || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    };
    match uri.scheme_str() {
        Some("https") => !host.is_empty(),
        Some("http") => is_near(),
        _ => false,
    }
}

impl Identity for ContainerRole {
    fn fetch(&self, now: SystemTime) -> Result<TemporaryCredentials, IdentityError> {
        let mut request = Request::get(&self.url);
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization.as_str());
        }
        let request = request.body(Vec::new()).map_err(|_| {
            IdentityError::Refused("the authorization token, or the address, cannot be sent".to_owned())
        })?;
        let reply = Service::near(&self.url, self.patience)
            .ask(&request)
            .map_err(|unreached| IdentityError::Unavailable(unreached.why()))?;
        of_json(&reply, "this container's role".to_owned(), now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: a token is sent only over TLS, or to this machine, or to the services that have it anyway.
    #[test]
    fn tokens_stay_near() {
        for url in [
            "https://credentials.example.org/x",
            "http://127.0.0.1:51679/creds",
            "http://localhost/creds",
            "http://[::1]:80/creds",
            "http://169.254.170.23/v1/credentials",
            "http://[fd00:ec2::23]/v1/credentials",
        ] {
            assert!(may_be_asked(url), "{url}");
        }
        for url in [
            "http://credentials.example.org/x",
            "http://169.254.169.254/latest",
            "http://127.0.0.1@example.org/x",
            "http://127.0.0.1.example.org/x",
            "ftp://127.0.0.1/x",
            "/creds",
            "",
        ] {
            assert!(!may_be_asked(url), "{url}");
        }
    }
}
