//! The state with which every run begins: a team with a day's work behind it, made once by an honest server and real
//! clients, and copied from there.

use super::calls::PAST;
use super::oracle::{Bytes, Call, Event, Files, Outcome, Tree};
use super::world::{Habits, Image, Link, Machine, Mount, NOW_NS, Refusal, Server, server_key};
use holdfast_client::admin::{Admin, CreateConfig, Home, create_with};
use holdfast_client::remote::Remote;
use holdfast_client::{Changes, FsError};
use holdfast_content::{DeviceId, Entry, GroupId, Inode, InodeKind};
use holdfast_crypto::{Digest, PublicKey, SigningKey};
use holdfast_protocol::message::{AddressedBlock, Request, Response, ServerKeys, ViewReply};
use holdfast_protocol::signed::Signed;
use holdfast_rpc::ServerAddress;
use holdfast_testing::PATIENCE;
use parking_lot::Mutex;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

/// The participants, by the numbers of their devices.
pub const NAMES: [&str; 5] = ["root", "alice", "bob", "carol", "dave"];
/// The superuser.
pub const ROOT: usize = 0;
/// The victim.
pub const ALICE: usize = 1;
/// Another member of the team, who in some rows helps the adversary.
pub const BOB: usize = 2;
/// A member of the team whose machine has never mounted the file system.
pub const CAROL: usize = 3;
/// A user who is not in the team.
pub const DAVE: usize = 4;
/// Files beside those that runs use, so that the directory has a tree of its own.
const EXTRAS: usize = 200;
/// Too large for an inode.
const CONTENT_BYTES: usize = 20_000;

/// Bytes that cannot be compressed.
pub fn content(seed: u64) -> Bytes {
    let mut random = crate::random::Random::new(seed);
    let words = (0..CONTENT_BYTES / 8).flat_map(|_| random.number().to_le_bytes());
    Arc::new(words.collect())
}

/// A team with a day's work behind it.
pub struct Scene {
    /// The superuser.
    pub superuser: PublicKey,
    /// What the server's disk held yesterday.
    pub yesterday: Image,
    /// What the server's disk holds today.
    pub today: Image,
    /// The view that the server showed yesterday.
    pub shown_yesterday: ViewReply,
    /// What each machine's disk holds today.
    pub machines: Vec<Image>,
    /// Blocks that clients have stored until today.
    pub blocks: Vec<AddressedBlock>,
    /// The first list of server keys, which another has replaced since.
    pub first_keys: Signed<ServerKeys>,
    /// What happened, with the position at which yesterday ended.
    pub tree: Tree,
}

/// The key of a device.
pub fn key_of(who: usize) -> SigningKey {
    SigningKey::from_seed(&[10 + who as u8; 32])
}

fn superuser_key(world: u8) -> SigningKey {
    SigningKey::from_seed(&[world; 32])
}

impl Scene {
    /// The team.
    pub const TEAM: GroupId = GroupId(1);

    /// The scene that all runs share.
    pub fn get() -> &'static Scene {
        static SCENE: OnceLock<Scene> = OnceLock::new();
        SCENE.get_or_init(|| Scene::make(90).expect("an honest server serves honest clients"))
    }

    /// Another file system of the same people with the same keys, except for the superuser's.
    pub fn foreign() -> &'static Scene {
        static SCENE: OnceLock<Scene> = OnceLock::new();
        SCENE.get_or_init(|| Scene::make(91).expect("an honest server serves honest clients"))
    }

    /// Its id.
    pub fn id(&self) -> Digest {
        self.superuser.file_system_id()
    }

    /// The key of a device of it.
    pub fn key(&self, who: usize) -> SigningKey {
        match who {
            ROOT => [90, 91].map(superuser_key).into_iter().find(|key| key.public() == self.superuser),
            who => Some(key_of(who)),
        }
        .expect("one of the two")
    }

    fn make(world: u8) -> Result<Scene, Refusal> {
        let superuser = superuser_key(world);
        let id = superuser.public().file_system_id();
        let server = Server::start(&Image::default());
        let blocks = Arc::new(Mutex::new(Vec::new()));
        let machine = |who: usize, key: SigningKey| {
            let link = Link::new(&server, id, key.public(), 0);
            let kept = blocks.clone();
            link.lie(Some(Arc::new(move |request, honest| {
                kept.lock().extend(blocks_of(&request));
                Ok(honest(request))
            })));
            Machine::new(NAMES[who], key, &Image::default(), link)
        };
        let machines: Vec<Machine> = (0..NAMES.len())
            .map(|who| machine(who, if who == ROOT { superuser.clone() } else { key_of(who) }))
            .collect();
        found(&machines, &superuser)?;
        let first_keys = server_keys(id, 1, &superuser);
        let second = Request::SetServerKeys(server_keys(id, 2, &superuser));
        machines[ROOT].link.call(second, PATIENCE).map_err(|error| FsError::Refused(error.to_string()))?;

        let honest = Habits::default();
        let mut files = Files::default();
        let bob = machines[BOB].mount(&honest)?;
        for (seed, name) in
            ["target", "second", "gone", "from", "mode", "owner", "mine"].into_iter().enumerate()
        {
            let bytes = content(seed as u64);
            bob.call(&Call::Create(name))?;
            bob.call(&Call::Write(name, bytes.clone()))?;
            files.present.insert(name.to_owned(), (bytes, 0o644));
        }
        add_extras(&bob)?;
        for number in 0..EXTRAS {
            files.present.insert(extra(number), (Bytes::default(), 0o644));
        }
        let alice = machines[ALICE].mount(&honest)?;
        alice.call(&Call::List)?;
        alice.engine.name_state(PAST)?;
        files.past = Arc::new(files.present.clone());
        let dave = machines[DAVE].mount(&honest)?;
        let shown_yesterday = look(&machines[ALICE].link)?;
        let yesterday = server.image();

        let mut tree = Tree::new(files);
        for (who, mount, call) in [
            (BOB, &bob, Call::Write("target", content(100))),
            (BOB, &bob, Call::Create("newer")),
            (ALICE, &alice, Call::Write("mine", content(101))),
            (BOB, &bob, Call::Stat("mine")),
            (ALICE, &alice, Call::Stat("newer")),
            (DAVE, &dave, Call::Stat("newer")),
        ] {
            let outcome = Outcome::Returned(mount.call(&call)?);
            tree.round(0, vec![Event { who, call, outcome }]).expect("there is one branch");
            while !look(&machines[ROOT].link)?.view.pending.is_empty() {
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
        }
        drop((alice, bob, dave));
        let today = server.image();
        let images = machines.iter().map(|machine| Image::of(&machine.disk)).collect::<Result<_, _>>();
        let mut blocks = std::mem::take(&mut *blocks.lock());
        blocks.sort_by_key(|block| block.address);
        blocks.dedup_by_key(|block| block.address);
        Ok(Scene {
            superuser: superuser.public(),
            yesterday,
            today,
            shown_yesterday,
            machines: images.expect("their power is on"),
            blocks,
            first_keys,
            tree,
        })
    }

    /// The last structure of a device as it was shown yesterday.
    pub fn former(&self, who: usize) -> Signed<holdfast_protocol::structure::Structure> {
        self.shown_yesterday.view.slots[&DeviceId(who as u32)].clone()
    }
}

fn server_keys(id: Digest, sequence: u64, superuser: &SigningKey) -> Signed<ServerKeys> {
    let keys = vec![server_key().public()];
    Signed::new(ServerKeys { file_system: id, sequence, keys }, superuser)
}

/// The superuser makes the file system, its users and the team.
fn found(machines: &[Machine], superuser: &SigningKey) -> Result<(), Refusal> {
    let root = &machines[ROOT];
    let config = CreateConfig {
        server: ServerAddress { host: "sim".into(), port: 1 },
        others: Vec::new(),
        superuser: superuser.clone().into(),
        name: "team".into(),
        superuser_name: "root".into(),
        state_dir: PathBuf::from("-"),
        now_ns: NOW_NS,
        deadline: PATIENCE,
    };
    create_with(&config, config.deadline, &*root.link, server_key().public(), root.disk.storage())
        .map_err(|error| FsError::Refused(error.to_string()))?;
    let engine = root.start(&Habits::default())?;
    let admin = Admin::new(&engine)?;
    for who in [ALICE, BOB, CAROL, DAVE] {
        admin.add_user(NAMES[who], Some(("laptop", key_of(who).public())), Home::Make, NOW_NS)?;
    }
    let team = admin.add_group("team", &["alice", "bob", "carol"], Home::Make, NOW_NS)?;
    engine.stop();
    assert_eq!(team, Scene::TEAM, "the first group");
    Ok(())
}

/// The view that a client is shown that only looks.
pub fn look(link: &Link) -> Result<ViewReply, FsError> {
    look_from(link, 0)
}

/// That view, with a proof that its log extends the first `log_size` operations.
pub fn look_from(link: &Link, log_size: u64) -> Result<ViewReply, FsError> {
    match link.call(Request::Look { log_size }, PATIENCE) {
        Ok(Response::View(reply)) => Ok(*reply),
        Ok(other) => Err(FsError::Refused(format!("{other:?}"))),
        Err(error) => Err((&error).into()),
    }
}

fn blocks_of(request: &Request) -> Vec<AddressedBlock> {
    match request {
        Request::Store(blocks) => blocks.clone(),
        Request::Update { attached, .. }
        | Request::Commit { attached, .. }
        | Request::Fast { attached, .. } => attached.blocks.clone(),
        _ => Vec::new(),
    }
}

fn extra(number: usize) -> String {
    format!("extra-{number:03}")
}

/// Empty files, all in one operation.
fn add_extras(mount: &Mount) -> Result<(), FsError> {
    let edit = |changes: &mut dyn Changes| {
        let root = holdfast_content::Handle::ROOT;
        let team = changes.entry(root, b"team")?.ok_or(FsError::NotFound)?.handle;
        for number in 0..EXTRAS {
            let handle = changes.allocate(team.principal)?;
            changes.set_inode(handle, Inode::new(InodeKind::File, 0o644, changes.me(), NOW_NS))?;
            let entry = Entry { handle, kind: InodeKind::File };
            changes.set_entry(team, extra(number).as_bytes(), Some(entry), NOW_NS)?;
        }
        Ok(())
    };
    mount.engine.modify(Arc::new(Mutex::new(edit)))?;
    mount.engine.flush_commits()
}
