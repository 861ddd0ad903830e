//! Which transport carries a connection, and what is remembered about a server's transports.
//!
//! TCP is cheaper where the link is good, and with bbr and paced bulk also where some packets are lost
//! (docs/benchmarks/links.md). QUIC is for links that lose many packets, and for kernels without a congestion
//! control that tolerates losses. So by default TCP comes first, and QUIC replaces it once such a link was
//! seen. If QUIC was not answered, it is not tried again for a while.

use crate::address::ServerAddress;
use crate::estimate::LinkEstimate;
use crate::socket;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::LazyLock;
use std::time::Duration;
use tokio::time::Instant;

/// The transport to use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Transport {
    /// TCP, and QUIC where that turns out to be better.
    #[default]
    Auto,
    /// TCP only.
    Tcp,
    /// QUIC only.
    Quic,
}

/// What is known about QUIC to a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Finding {
    /// It is answered, and is better on this link.
    Better,
    /// It is not answered: there is no such listener, or the network blocks datagrams.
    Unanswered,
}

/// How long a finding is valid.
const REMEMBERED: Duration = Duration::from_secs(1800);
/// Most findings; if there are more, all are dropped, which costs one attempt for each.
const FINDINGS_MAX: usize = 1024;
/// A round trip from which loss is worth avoiding: below it, losses are repaired before anybody notices.
const FAR: Duration = Duration::from_millis(10);
/// Share of lost packets above which TCP, even with bbr, waits for its time-outs.
const LOSSY: f64 = 0.1;
/// As above for TCP with a congestion control other than BBR.
const LOSSY_WITHOUT_BBR: f64 = 0.01;

/// Shared by all connections of the process.
static FINDINGS: LazyLock<Mutex<HashMap<ServerAddress, (Finding, Instant)>>> = LazyLock::new(Mutex::default);

pub(crate) fn remember(address: &ServerAddress, finding: Finding) {
    remember_at(Instant::now(), address, finding);
}

fn remember_at(now: Instant, address: &ServerAddress, finding: Finding) {
    let mut findings = FINDINGS.lock();
    if findings.len() >= FINDINGS_MAX {
        findings.clear();
    }
    findings.insert(address.clone(), (finding, now + REMEMBERED));
}

pub(crate) fn recall(address: &ServerAddress) -> Option<Finding> {
    recall_at(Instant::now(), address)
}

fn recall_at(now: Instant, address: &ServerAddress) -> Option<Finding> {
    let findings = FINDINGS.lock();
    findings.get(address).filter(|(_, until)| *until > now).map(|(finding, _)| *finding)
}

/// Whether QUIC is worth trying, given the estimate of a TCP link.
pub(crate) fn is_worth_trying(estimate: &LinkEstimate) -> bool {
    is_worth_trying_instead(estimate, socket::bbr_is_missing())
}

fn is_worth_trying_instead(estimate: &LinkEstimate, bbr_is_missing: bool) -> bool {
    let lossy = if bbr_is_missing { LOSSY_WITHOUT_BBR } else { LOSSY };
    estimate.rtt >= FAR && estimate.loss >= lossy
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: QUIC is tried where a link is far and loses packets, and nowhere else.
    #[test]
    fn quic_is_for_far_and_lossy_links() {
        let link = |ms, loss| LinkEstimate {
            rtt: Duration::from_millis(ms),
            sent_bytes_per_second: None,
            received_bytes_per_second: None,
            loss,
        };
        for (ms, loss, with_bbr, without) in [
            (40, 0.12, true, true),
            (40, 0.02, false, true),
            (300, 0.001, false, false),
            (1, 0.1, false, false),
        ] {
            assert_eq!(is_worth_trying_instead(&link(ms, loss), false), with_bbr, "{ms} {loss}");
            assert_eq!(is_worth_trying_instead(&link(ms, loss), true), without, "{ms} {loss}");
        }
    }

    /// Proves: findings are stored for each server, the newest counts, and they expire.
    #[test]
    fn findings_are_remembered_for_a_while() {
        let server = |port| ServerAddress { host: "findings.test".to_owned(), port };
        let now = Instant::now();
        remember_at(now, &server(1), Finding::Unanswered);
        remember_at(now, &server(1), Finding::Better);
        assert_eq!(recall_at(now, &server(1)), Some(Finding::Better));
        assert_eq!(recall_at(now, &server(2)), None);
        assert_eq!(recall_at(now + REMEMBERED, &server(1)), None);
    }
}
