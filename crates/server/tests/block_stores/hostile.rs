//! A compromised block server, which has the right key and answers as it pleases: it can withhold blocks, but no answer
//! makes a client accept wrong bytes, hang or panic.

use super::fixture::{FS, SERVER};
use super::{ANNA, chunk};
use crate::common::key;
use holdfast_protocol::block_server::{
    BlockCall, BlockFault, BlockReply, BlockResult, ListedBlock, LoadedBlock, PinEntry,
};
use holdfast_protocol::message::{Request, Response, ServerError, StoreHeader, Welcome};
use holdfast_rpc::{BlocksAddress, Limits, Listeners, ServerAddress, Service, Session, serve};
use holdfast_server::{BlockStore, BlockStoreError, RemoteBlocks, RemoteBlocksSettings};
use std::sync::{Arc, Mutex};

/// Its answer to every call but the first.
#[derive(Clone, Copy, Debug)]
enum Lie {
    OtherBlock,
    TooMany,
    Nothing,
    OtherAnswer,
    OtherResponse,
    Error,
    AlwaysOther,
    AlwaysOlder,
    ListedBefore,
    PinnedBefore,
}

struct Liar(Mutex<Option<Lie>>);

impl Service for Liar {
    type State = ();

    async fn handle(&self, session: &Arc<Session<()>>, request: Request) -> Response {
        let Request::BlockServer(request) = request else {
            session.admit();
            return Response::Hello(Welcome {
                version: holdfast_protocol::message::PROTOCOL_VERSIONS.1,
                file_system: None,
                device: None,
                abort_after_ms: 0,
            });
        };
        let other = LoadedBlock::Present(StoreHeader { owner: ANNA, stored_ns: 0 }, chunk(2, 100).1);
        let mut reply = BlockReply { store: [1; 16], position: 5, outcome: Ok(BlockResult::Done) };
        if request.call == BlockCall::Greet {
            return Response::BlockServer(Box::new(reply));
        }
        let lie = *self.0.lock().unwrap();
        reply.outcome = match lie.unwrap() {
            Lie::OtherBlock => Ok(BlockResult::Loaded(vec![other])),
            Lie::TooMany => Ok(BlockResult::Loaded(vec![other; 9])),
            Lie::Nothing => Ok(BlockResult::Loaded(Vec::new())),
            Lie::OtherAnswer => Ok(BlockResult::Count(3)),
            Lie::OtherResponse => return Response::Done,
            Lie::Error => return Response::Error(ServerError::Storage("burnt".to_owned())),
            Lie::AlwaysOther => {
                reply.store = [request.known as u8 ^ 1; 16];
                reply.position += request.known;
                Err(BlockFault::OtherStore)
            }
            Lie::AlwaysOlder => {
                reply.position = request.known.wrapping_add(1);
                Err(BlockFault::OlderStore)
            }
            Lie::ListedBefore => {
                let address = chunk(1, 100).0;
                let again = ListedBlock { address, owner: ANNA, age_ns: 0, bytes: 100, place: 5 };
                Ok(BlockResult::Listed(vec![again]))
            }
            Lie::PinnedBefore => {
                let again = PinEntry { holder: 5, until_ns: 0, addresses: Vec::new() };
                Ok(BlockResult::Pinned(Some(again)))
            }
        };
        Response::BlockServer(Box::new(reply))
    }
}

/// Proves: every lie is reported as damage or as an error that names the block store.
#[test]
fn lies_are_errors() {
    let liar = Arc::new(Liar(Mutex::new(None)));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let service = liar.clone();
    std::thread::spawn(move || {
        runtime.block_on(async {
            let tcp = tokio::net::TcpListener::from_std(listener).unwrap();
            serve(Listeners::from(tcp), &key(9), service, Limits::default(), std::future::pending()).await
        })
    });
    let server = ServerAddress { host: "127.0.0.1".to_owned(), port };
    let address = Some(BlocksAddress { server, others: Vec::new(), key: key(9).public() });
    let data = tempfile::tempdir().unwrap();
    let settings = RemoteBlocksSettings { address, data: data.path(), key: key(SERVER), anew: false };
    let store = RemoteBlocks::open(settings).unwrap().unwrap();
    let wanted = chunk(1, 100).0;
    let lies = [
        Lie::OtherBlock,
        Lie::TooMany,
        Lie::Nothing,
        Lie::OtherAnswer,
        Lie::OtherResponse,
        Lie::Error,
        Lie::AlwaysOther,
        Lie::AlwaysOlder,
        Lie::ListedBefore,
        Lie::PinnedBefore,
    ];
    for lie in lies {
        *liar.0.lock().unwrap() = Some(lie);
        match store.load(FS, &[wanted], usize::MAX) {
            Ok(loaded) => assert!(matches!(&loaded[..], [LoadedBlock::Damaged(_)]), "{lie:?}: {loaded:?}"),
            Err(error) => {
                assert!(matches!(error, BlockStoreError::Failed { .. }), "{lie:?}: {error:?}");
                assert!(error.to_string().contains("hf+blocks://"), "{lie:?}: {error}");
            }
        }
        for failed in [
            store.references(FS, &[wanted]).is_err(),
            store.store(FS, ANNA, vec![chunk(1, 100)], None, 0).is_err(),
            store.contains(FS, &[wanted]).is_err(),
            store.figures().is_err(),
            store.list(FS, 5).is_err(),
            store.pinned(FS, Some(5)).is_err(),
            store.collect(FS, &[wanted], &Default::default(), 0).is_err(),
        ] {
            assert!(failed, "{lie:?}");
        }
    }
}
