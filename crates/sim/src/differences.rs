//! Views by difference, for servers that lie: they make up whole views, which are then shown in the form that the
//! client asked for.

use holdfast_protocol::message::{Request, Response};
use holdfast_protocol::packed::Difference;

/// Has the answer show a whole view. Returns the size of the log from which the client wants the difference.
pub fn want_whole(request: &mut Request) -> Option<u64> {
    match request {
        Request::Update { by_difference, log_size, .. } | Request::Fast { by_difference, log_size, .. } => {
            std::mem::take(by_difference).then_some(*log_size)
        }
        _ => None,
    }
}

/// Shows a view as a difference, if the client asked for that. Nothing is left out, as the client need not have what a
/// liar shows.
pub fn by_difference(answer: Response, since: Option<u64>) -> Response {
    let Some(since) = since else { return answer };
    match answer {
        Response::View(reply) => Response::Difference(Difference::of(&reply, since, |_| false)),
        Response::LeasedView(reply, grant) => {
            Response::LeasedDifference(Difference::of(&reply, since, |_| false), grant)
        }
        answer => answer,
    }
}
