//! The role of a virtual machine, from the metadata service of EC2 (IMDSv2). The first request gets a token,
//! which a request forged from outside cannot have. Then the role's name and its credentials are requested.
//!
//! Until the service has given a token, it counts as absent: elsewhere the same address belongs to another
//! cloud's service, or to nobody.

use super::identity::{
    CallError, Environment, Identity, IdentityError, Service, ServiceReply, TemporaryCredentials, of_json,
    patience, refusal,
};
use std::time::{Duration, SystemTime};
use ureq::http::Request;
use zeroize::Zeroizing;

/// How long one reply may take, if the environment does not say so.
const PATIENCE: Duration = Duration::from_secs(1);
const ADDRESS: &str = "http://169.254.169.254";
const ADDRESS_V6: &str = "http://[fd00:ec2::254]";
const ROLES: &str = "latest/meta-data/iam/security-credentials/";

struct MachineRole {
    /// The URL of the service, without a slash at the end.
    endpoint: String,
    /// How long one reply may take.
    patience: Duration,
}

/// The metadata service, unless the environment says not to use it.
pub(super) fn of(set: Environment<'_>) -> Result<Box<dyn Identity>, IdentityError> {
    if set("AWS_EC2_METADATA_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        return Err(IdentityError::Absent("AWS_EC2_METADATA_DISABLED is set".to_owned()));
    }
    let is_v6 =
        set("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE").is_some_and(|mode| mode.eq_ignore_ascii_case("ipv6"));
    let usual = if is_v6 { ADDRESS_V6 } else { ADDRESS };
    let endpoint = set("AWS_EC2_METADATA_SERVICE_ENDPOINT").unwrap_or_else(|| usual.to_owned());
    let endpoint = endpoint.trim_end_matches('/').to_owned();
    Ok(Box::new(MachineRole { endpoint, patience: patience(set).unwrap_or(PATIENCE) }))
}

impl MachineRole {
    fn token(&self, service: &Service) -> Result<Zeroizing<String>, IdentityError> {
        let endpoint = &self.endpoint;
        let request = Request::put(format!("{endpoint}/latest/api/token"))
            .header("x-aws-ec2-metadata-token-ttl-seconds", "60")
            .body(Vec::new())
            .map_err(|_| IdentityError::Refused(not_an_endpoint(endpoint)))?;
        match service.ask(&request) {
            Ok(ServiceReply { status: 200, body }) => match std::str::from_utf8(&body) {
                Ok(token) if !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic()) => {
                    Ok(Zeroizing::new(token.to_owned()))
                }
                _ => Err(IdentityError::Absent(format!("{endpoint} gives no token"))),
            },
            Ok(reply) => {
                Err(IdentityError::Absent(format!("{endpoint} answers with status {}", reply.status)))
            }
            Err(CallError::NoConnection(why)) => {
                Err(IdentityError::Absent(format!("{endpoint} is not there: {why}")))
            }
            Err(CallError::NoReply(why)) => Err(IdentityError::Absent(format!(
                "{endpoint} does not answer: {why}; for a container on EC2 the machine's hop limit must be 2"
            ))),
        }
    }

    fn get(&self, service: &Service, path: &str, token: &str) -> Result<ServiceReply, IdentityError> {
        let endpoint = &self.endpoint;
        let request = Request::get(format!("{endpoint}/{path}"))
            .header("x-aws-ec2-metadata-token", token)
            .body(Vec::new())
            .map_err(|_| IdentityError::Refused(not_an_endpoint(endpoint)))?;
        service
            .ask(&request)
            .map_err(|unreached| IdentityError::Unavailable(format!("{endpoint}: {}", unreached.why())))
    }
}

impl Identity for MachineRole {
    fn fetch(&self, now: SystemTime) -> Result<TemporaryCredentials, IdentityError> {
        let service = Service::near(&self.endpoint, self.patience);
        let token = self.token(&service)?;
        let reply = self.get(&service, ROLES, &token)?;
        if reply.status == 404 {
            return Err(IdentityError::Absent("this machine has no role".to_owned()));
        }
        if reply.status != 200 {
            return Err(refusal(reply.status, "", &self.endpoint));
        }
        let role = std::str::from_utf8(&reply.body).ok().and_then(|text| text.lines().next()).unwrap_or("");
        let is_name = |c: char| c.is_ascii_alphanumeric() || "+=,.@-_".contains(c);
        if role.is_empty() || role.len() > 128 || !role.chars().all(is_name) {
            let why = format!("{} does not say which role this machine has", self.endpoint);
            return Err(IdentityError::Unavailable(why));
        }
        let reply = self.get(&service, &format!("{ROLES}{role}"), &token)?;
        of_json(&reply, format!("this machine's role {role} ({})", self.endpoint), now)
    }
}

fn not_an_endpoint(text: &str) -> String {
    format!("AWS_EC2_METADATA_SERVICE_ENDPOINT={text} is no URL")
}
