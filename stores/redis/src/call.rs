//! One call of a script: its keys and its arguments.

use redis::aio::MultiplexedConnection;
use redis::{
    Cmd, ErrorKind, FromRedisValue, RedisResult, Script, ServerErrorKind, ToRedisArgs, Value,
    from_redis_value,
};

/// The words of a call, which can be sent more than once.
pub(crate) struct Call<'a> {
    script: &'a Script,
    keys: Vec<Vec<u8>>,
    arguments: Vec<Vec<u8>>,
    acknowledged: bool,
}

impl<'a> Call<'a> {
    pub(crate) fn of(script: &'a Script) -> Self {
        Self {
            script,
            keys: Vec::new(),
            arguments: Vec::new(),
            acknowledged: false,
        }
    }

    /// Its answer counts only once its writes are on the servers that must have them, where the store was
    /// told so.
    pub(crate) fn acknowledged(mut self) -> Self {
        self.acknowledged = true;
        self
    }

    pub(crate) fn is_acknowledged(&self) -> bool {
        self.acknowledged
    }

    /// The first of its keys, which all lie in one slot of a cluster.
    pub(crate) fn first_key(&self) -> &[u8] {
        self.keys.first().map_or(&[], Vec::as_slice)
    }

    pub(crate) fn has_one_key(&self) -> bool {
        self.keys.len() == 1
    }

    pub(crate) fn key(&mut self, key: String) -> &mut Self {
        self.keys.push(key.into_bytes());
        self
    }

    /// An argument of bytes.
    pub(crate) fn packed(&mut self, argument: Vec<u8>) -> &mut Self {
        self.arguments.push(argument);
        self
    }

    pub(crate) fn arg(&mut self, argument: impl ToRedisArgs) -> &mut Self {
        argument.write_redis_args(&mut self.arguments);
        self
    }

    /// Carries it out once. A script that the server does not know is loaded first; then nothing was carried
    /// out.
    pub(crate) async fn send(&self, connection: &mut MultiplexedConnection) -> RedisResult<Value> {
        match self.command().query_async(connection).await {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                self.script.load_async(connection).await?;
                self.command().query_async(connection).await
            }
            answer => answer,
        }
    }

    /// As [`send`](Self::send), on a server of a cluster to which a slot is being moved.
    pub(crate) async fn send_asking(&self, connection: &mut MultiplexedConnection) -> RedisResult<Value> {
        // It must come directly after ASKING.
        self.script.load_async(connection).await?;
        asking(self.command(), connection).await
    }

    fn command(&self) -> Cmd {
        let words = self.keys.iter().chain(&self.arguments);
        // Beside them the name, the hash and a number.
        let bytes = words.map(Vec::len).sum::<usize>() + 64;
        let mut command = Cmd::with_capacity(self.keys.len() + self.arguments.len() + 3, bytes);
        command
            .arg("EVALSHA")
            .arg(self.script.get_hash())
            .arg(self.keys.len())
            .arg(&self.keys)
            .arg(&self.arguments);
        command
    }
}

/// Sends a command about a key to a server to which the key's slot is being moved.
pub(crate) async fn asking<T: FromRedisValue>(
    command: Cmd,
    connection: &mut MultiplexedConnection,
) -> RedisResult<T> {
    let mut both = redis::pipe();
    both.cmd("ASKING").add_command(command);
    // A pipeline's own error would not name the server that has the slot instead.
    let mut last = Value::Nil;
    for answer in connection.send_packed_commands(&both, 0, 2).await? {
        last = answer.extract_error()?;
    }
    Ok(from_redis_value(last)?)
}
