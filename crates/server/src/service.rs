//! Connects the transport to the [`ServerCore`]: requests that block run on threads of their own, and
//! requests that wait do so without occupying a thread.

use crate::file_system::FileSystem;
use crate::order::ActiveStatus as OrderStanding;
use crate::parcels;
use crate::server_core::{Caller, RequestOutcome, ServerCore};
use holdfast_content::DeviceId;
use holdfast_protocol::message::{LockReply, LockRequest, MESSAGE_BYTES_MAX, Request, Response, ServerError};
use holdfast_rpc::{Service, Session};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tracing::Span;

/// Longest wait of a `FetchPending`.
const FETCH_PENDING_MAX: Duration = Duration::from_secs(60);
/// Longest wait of an `AwaitLock`.
const AWAIT_LOCK_MAX: Duration = Duration::from_secs(30);
/// Longest wait of an `AwaitRecall`.
const AWAIT_RECALL_MAX: Duration = Duration::from_secs(60);
/// How often the server looks for changes to push to a session that is at work. Changes within one interval
/// are pushed together.
const PUSH_EVERY: Duration = Duration::from_millis(20);
/// Smallest advised reply size, in bytes, of a link that receives pushes. On a slower link, replies of this
/// size take more than a second or two.
const FAST_ANSWER_BYTES: usize = 4 << 20;
/// How often the server looks whether a session that waits for recalls has begun to work, and so should
/// receive pushes.
const WORK_LOOK: Duration = Duration::from_secs(1);
/// How often a request that waits for a lock checks whether the holder is still there.
const LOCK_LOOK: Duration = Duration::from_secs(2);
/// How long a reply waits for confirmation that this server is still the active one.
const UNSURE_MAX: Duration = Duration::from_secs(20);
/// How often a waiting reply checks for that confirmation.
const UNSURE_LOOK: Duration = Duration::from_millis(10);
/// Most requests of one connection carried out at the same time: a member with many requests shares the
/// threads with others.
const AT_ONCE: usize = 16;

/// Serves the file systems of one [`ServerCore`].
pub struct Driver {
    pub(crate) core: Arc<ServerCore>,
}

/// The state of one connection.
pub struct SessionState {
    caller: OnceLock<Caller>,
    at_once: Arc<Semaphore>,
    parcels_at_once: Arc<Semaphore>,
}

impl Default for SessionState {
    fn default() -> Self {
        SessionState {
            caller: OnceLock::new(),
            at_once: Arc::new(Semaphore::new(AT_ONCE)),
            parcels_at_once: Arc::new(Semaphore::new(parcels::AT_ONCE)),
        }
    }
}

impl Service for Driver {
    type State = SessionState;

    async fn handle(&self, session: &Arc<Session<SessionState>>, request: Request) -> Response {
        let caller = session.state.caller.get();
        let Some(file_system) = caller.and_then(|caller| caller.file_system.clone()) else {
            return self.answer(session, request).await;
        };
        tokio::select! {
            answer = self.answer(session, request) => {
                if may_leave(&file_system, &answer).await {
                    return answer;
                }
            }
            () = file_system.ended() => {}
        }
        // Only the server that is active now can say whether the request was carried out: the client asks
        // again there.
        session.end();
        std::future::pending().await
    }
}

/// Whether a reply may leave: this server has been the active one of the file system until now, or the reply
/// contains nothing of the file system. Waits up to [`UNSURE_MAX`] while that is uncertain.
async fn may_leave(file_system: &FileSystem, answer: &Response) -> bool {
    let start = tokio::time::Instant::now();
    loop {
        match (file_system.active_status(), answer) {
            (_, Response::Error(ServerError::Elsewhere(_))) => return false,
            (OrderStanding::Active, _) | (_, Response::Error(ServerError::NoSpace)) => return true,
            (OrderStanding::Lost, _) => return false,
            (OrderStanding::Unsure, _) if start.elapsed() > UNSURE_MAX => return false,
            (OrderStanding::Unsure, _) => tokio::time::sleep(UNSURE_LOOK).await,
        }
    }
}

impl Driver {
    async fn answer(&self, session: &Arc<Session<SessionState>>, request: Request) -> Response {
        match request {
            Request::Hello { versions, file_system } => self.greet(session, versions, file_system).await,
            request => {
                let caller = session.state.caller.get().expect("a greeting comes first").clone();
                let caller = Caller { answer_bytes: answer_bytes(session, &request), ..caller };
                match (request, &caller.file_system) {
                    (Request::FetchPending { device, number, wait_ms }, Some(file_system)) => {
                        self.fetch_pending(&caller, file_system, device, number, wait_ms).await
                    }
                    (Request::AwaitLock { lock, wait_ms }, Some(file_system)) => {
                        self.await_lock(&caller, file_system, lock, wait_ms).await
                    }
                    (
                        Request::AwaitRecall { run, epoch, acknowledged, log_size, wait_ms },
                        Some(file_system),
                    ) => {
                        let log_size = log_size.filter(|_| caller.answer_bytes >= FAST_ANSWER_BYTES);
                        let recall_request = RecallRequest { run, epoch, acknowledged, log_size };
                        self.await_recall(&caller, file_system, recall_request, wait_ms).await
                    }
                    (request @ (Request::Update { .. } | Request::Fast { .. }), Some(file_system)) => {
                        self.operate(session, &caller, file_system, request).await
                    }
                    (request, _) => {
                        // The permit goes to the thread: if the session is lost, the work is still done to
                        // its end, and its thread counts as occupied until then.
                        let core = self.core.clone();
                        // Taken before the permit, so that requests that wait for memory for parcels hold up
                        // no other request of the session.
                        let room = self.room_for(session, &request).await;
                        let permit = session.state.at_once.clone().acquire_owned().await;
                        off_reactor(move || {
                            let (_permit, _room) = (permit, room);
                            core.handle(&caller, request)
                        })
                        .await
                    }
                }
            }
        }
    }
}

/// How large a reply with blocks may be on this session's link, in bytes. A request for few blocks comes with
/// operations that a program waits for, so its reply is limited further.
fn answer_bytes(session: &Session<SessionState>, request: &Request) -> usize {
    let advised = session.estimate().map_or(MESSAGE_BYTES_MAX, |link| link.frame_bytes_advised());
    match request {
        Request::Retrieve(addresses) if addresses.len() <= 4 => advised / 4,
        _ => advised,
    }
}

impl Driver {
    /// A turn and the memory to carry out a request with parcels; `None` for a request without.
    async fn room_for(
        &self,
        session: &Session<SessionState>,
        request: &Request,
    ) -> Option<impl Send + use<>> {
        match parcels::weight(request) {
            0 => None,
            weight => {
                let turn = session.state.parcels_at_once.clone().acquire_owned().await;
                Some((turn, self.core.resources.parcels.memory_for(weight).await))
            }
        }
    }

    async fn greet(
        &self,
        session: &Arc<Session<SessionState>>,
        versions: (u16, u16),
        wanted: Option<holdfast_crypto::Digest>,
    ) -> Response {
        // The front end is not trusted: an address that only it claims does not count as local.
        let local = session.address_is_sure && session.address.ip().to_canonical().is_loopback();
        let (core, peer) = (self.core.clone(), session.peer);
        let greeted = off_reactor(move || core.greet(peer, local, versions, wanted)).await;
        if greeted.admitted {
            session.admit();
        }
        let _ = session.state.caller.set(Caller {
            peer,
            local,
            file_system: greeted.file_system,
            answer_bytes: MESSAGE_BYTES_MAX,
        });
        greeted.answer
    }

    async fn fetch_pending(
        &self,
        caller: &Caller,
        file_system: &Arc<FileSystem>,
        device: DeviceId,
        number: u64,
        wait_ms: u32,
    ) -> Response {
        let wait = Duration::from_millis(wait_ms.into()).min(FETCH_PENDING_MAX);
        let deadline = tokio::time::Instant::now() + wait;
        loop {
            let mut settled = std::pin::pin!(file_system.next_settled());
            // From here on no event is missed, even if an operation settles before the wait begins.
            settled.as_mut().enable();
            let (core, asking) = (self.core.clone(), caller.clone());
            if let Some(answer) = off_reactor(move || core.operation_status(&asking, device, number)).await {
                return answer;
            }
            if tokio::time::timeout_at(deadline, settled).await.is_err() {
                return Response::Structure(None);
            }
        }
    }

    /// Carries out an operation once no lease conflicts with it. The operation waits without a thread, and at
    /// most for the rest of a lease term, because the leases it waits for are not granted again meanwhile.
    async fn operate(
        &self,
        session: &Arc<Session<SessionState>>,
        caller: &Caller,
        file_system: &Arc<FileSystem>,
        mut request: Request,
    ) -> Response {
        let mut claim = None;
        loop {
            let mut freed = std::pin::pin!(file_system.next_freed());
            // From here on no event is missed, even if a lease is given up before the wait begins.
            freed.as_mut().enable();
            // The permit and the room for parcels go to the thread, as with any request. They are not held
            // while the operation waits.
            let room = self.room_for(session, &request).await;
            let permit = session.state.at_once.clone().acquire_owned().await;
            let (core, asking, has_claim) = (self.core.clone(), caller.clone(), claim.is_some());
            let attempted = off_reactor(move || {
                let (_permit, _room) = (permit, room);
                core.attempt(&asking, request, has_claim)
            });
            let wait_ms = match attempted.await {
                RequestOutcome::Answered(answer) => return *answer,
                RequestOutcome::Waits { request: again, wait_ms, claim: claimed } => {
                    request = *again;
                    claim = claim.or(claimed);
                    wait_ms
                }
            };
            // Nothing wakes this wait when a lease expires, so the wait has a limit.
            let _ = tokio::time::timeout(Duration::from_millis(wait_ms + 1), freed).await;
        }
    }

    /// Waits until a client's run has to give up something, other devices have made changes to push to it, or
    /// the time is up.
    async fn await_recall(
        &self,
        caller: &Caller,
        file_system: &Arc<FileSystem>,
        recall_request: RecallRequest,
        wait_ms: u32,
    ) -> Response {
        let wait = Duration::from_millis(wait_ms.into()).min(AWAIT_RECALL_MAX);
        let mut now = tokio::time::Instant::now();
        let (deadline, mut look_at) = (now + wait, now + PUSH_EVERY);
        let (device, mut settled) = (file_system.device(&caller.peer), None);
        loop {
            let mut recalled = std::pin::pin!(file_system.next_recall());
            // From here on no event is missed, even if something is recalled before the wait begins.
            recalled.as_mut().enable();
            if let Some(answer) = self.core.recall(
                caller,
                recall_request.run,
                recall_request.epoch,
                recall_request.acknowledged,
            ) {
                return answer;
            }
            if let (Some(log_size), true) = (recall_request.log_size, now >= look_at) {
                let is_at_work = device.is_some_and(|device| file_system.is_at_work(device));
                look_at = now + if is_at_work { PUSH_EVERY } else { WORK_LOOK };
                if is_at_work && settled != Some(file_system.settled_count()) {
                    settled = Some(file_system.settled_count());
                    let (core, asking) = (self.core.clone(), caller.clone());
                    if let Some(answer) = off_reactor(move || core.push(&asking, log_size)).await {
                        return answer;
                    }
                }
            }
            let until = if recall_request.log_size.is_some() { look_at.min(deadline) } else { deadline };
            let _ = tokio::time::timeout_at(until, recalled).await;
            now = tokio::time::Instant::now();
            if now >= deadline {
                return Response::Recalled(None);
            }
        }
    }

    /// Waits until no other lock conflicts with the requested one, or the time is up.
    async fn await_lock(
        &self,
        caller: &Caller,
        file_system: &Arc<FileSystem>,
        lock: LockRequest,
        wait_ms: u32,
    ) -> Response {
        let wait = Duration::from_millis(wait_ms.into()).min(AWAIT_LOCK_MAX);
        let deadline = tokio::time::Instant::now() + wait;
        let device = file_system.device(&caller.peer);
        let _waiting = device.map(|device| LockWait { file_system, device, lock: &lock });
        loop {
            let mut changed = std::pin::pin!(file_system.next_lock_change());
            // From here on no event is missed, even if a lock changes before the wait begins.
            changed.as_mut().enable();
            let (core, asking, lock) = (self.core.clone(), caller.clone(), lock.clone());
            let answer =
                off_reactor(move || core.handle(&asking, Request::AwaitLock { lock, wait_ms: 0 })).await;
            let is_held = matches!(&answer, Response::Locks { answer: LockReply::Held(_), .. });
            let now = tokio::time::Instant::now();
            if !is_held || now >= deadline {
                return answer;
            }
            // Nothing wakes this wait when a holder's lease expires, so it also checks regularly.
            let _ = tokio::time::timeout_at(deadline.min(now + LOCK_LOOK), changed).await;
        }
    }
}

/// The fields of a client's `AwaitRecall`.
struct RecallRequest {
    run: u128,
    epoch: u64,
    acknowledged: u64,
    log_size: Option<u64>,
}

/// Notes the end of a device's wait for a lock when it is dropped, which also happens when the connection is
/// lost.
struct LockWait<'a> {
    file_system: &'a FileSystem,
    device: DeviceId,
    lock: &'a LockRequest,
}

impl Drop for LockWait<'_> {
    fn drop(&mut self) {
        self.file_system.waits_no_more(self.device, self.lock);
    }
}

/// Runs blocking work on a thread for such work, in the caller's tracing span. A panic there is raised again
/// here, which ends the connection.
async fn off_reactor<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let span = Span::current();
    match spawn_blocking(move || span.in_scope(work)).await {
        Ok(value) => value,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is shutting down; the connection goes with it.
            Err(_) => std::future::pending().await,
        },
    }
}
