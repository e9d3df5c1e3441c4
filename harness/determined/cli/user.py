"""`det user` and `det token`: who one is to the master, and who else there is."""

import argparse
import os
from typing import TYPE_CHECKING

from determined.cli import render, terminal
from determined.cli.parser import Subparsers, command, group, positive

if TYPE_CHECKING:
    from determined.common.api.token_store import TokenStore


def register(commands: Subparsers) -> None:
    verbs = group(commands, "user u", "log in and out, look after users", default="list")

    p = command(verbs, "login", login, "log in; later commands act as this user")
    p.add_argument("username", nargs="?")

    p = command(verbs, "logout", logout, "log out")
    p.add_argument("-a", "--all", action="store_true", help="every user who is logged in here")

    command(verbs, "whoami", whoami, "say who is logged in")

    p = command(verbs, "list ls", list_users, "list users")
    p.add_argument("-a", "--all", action="store_true", help="with those who are not active")

    p = command(verbs, "create", create, "create a user")
    p.add_argument("username")
    p.add_argument("--admin", action="store_true", help="with the rights of an administrator")
    how = p.add_mutually_exclusive_group()
    how.add_argument("--password", help="asked for when it is left out")
    how.add_argument("--remote", action="store_true", help="logs in elsewhere, without a password here")

    p = command(verbs, "change-password", change_password, "change a password: your own, or a user's")
    p.add_argument("target_user", nargs="?")

    tokens = group(commands, "token tkn", "make tokens and log in with them", default="create")
    p = command(tokens, "create", create_token, "make a token, to log in with from elsewhere")
    p.add_argument("username", nargs="?", help="whom it is for; default: yourself")
    p.add_argument("-e", "--expiration-days", type=positive, metavar="N", help="how long it is good for")
    how = p.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="as JSON")
    how.add_argument("--yaml", action="store_true", help="as YAML")
    p = command(tokens, "login", login_with_token, "log in with a token; later commands act as its user")
    p.add_argument("token")


def login(args: argparse.Namespace) -> None:
    from determined.cli.connect import master_info, master_url
    from determined.common.api import authentication, errors
    from determined.common.api.token_store import TokenStore

    url = master_url(args)
    master_info(url)
    username = args.username or args.user or terminal.ask_line("User name: ").strip()
    password = terminal.ask_password(f"Password for user {username!r}: ")
    try:
        token = authentication.login(url, username, password)
    except errors.UnauthenticatedException as e:
        raise terminal.CliError(authentication.refused(url, username)) from e
    problem = authentication.password_problem(password)
    if problem:
        terminal.warn(f"{problem}: change it with `det user change-password`")
    _keep(TokenStore(url), username, token)


def login_with_token(args: argparse.Namespace) -> None:
    from determined.cli.connect import master_info, master_url
    from determined.common.api import Session, errors
    from determined.common.api.token_store import TokenStore
    from determined.experimental._user import whoami

    url = master_url(args)
    master_info(url)
    with Session(url, token=args.token) as session:
        try:
            username = whoami(session).username
        except errors.UnauthenticatedException as e:
            raise terminal.CliError(f"the master at {url} does not know this token, or it has expired") from e
    _keep(TokenStore(url), username, args.token)


def _keep(store: "TokenStore", username: str, token: str) -> None:
    store.put(username, token, activate=True)
    print(f"Logged in as {username!r} at {store.master}")
    by_environment = os.environ.get("DET_USER")
    decided = os.environ.get("DET_USER_TOKEN") or os.environ.get("DET_PASS") is not None
    if by_environment and decided and by_environment != username:
        terminal.warn(
            f"DET_USER is set here, so commands act as {by_environment!r}: name this user with -u {username}"
        )


def create_token(args: argparse.Namespace) -> None:
    from determined.cli.connect import connect
    from determined.experimental._user import get_user_by_name, whoami

    session = connect(args)
    user = get_user_by_name(session, args.username) if args.username else whoami(session)
    body: dict[str, object] = {"userId": user.user_id}
    if args.expiration_days is not None:
        body["lifespan"] = f"{24 * args.expiration_days}h"
    made = session.post("/api/v1/tokens", body).json()
    if args.json or args.yaml:
        (render.print_json if args.json else render.print_yaml)({"token": made["token"]})
        return
    print(made["token"])
    terminal.note(
        f"It acts as {user.username!r} at {session.master}: keep it as you keep a password.\n"
        f"Elsewhere, type: det -m {session.master} token login <token>"
    )


def logout(args: argparse.Namespace) -> None:
    from determined.cli.connect import master_url
    from determined.common.api.token_store import TokenStore

    store = TokenStore(master_url(args))
    kept = store.users()
    if args.all:
        leaving = sorted(kept)
    else:
        username = args.user or store.active_user()
        leaving = [username] if username is not None and username in kept else []
    if not leaving:
        raise terminal.CliError(f"nobody is logged in to the master at {store.master} from here")
    for username in leaving:
        _log_out(store, username, kept[username])
        print(f"Logged out {username!r}")


def _log_out(store: "TokenStore", username: str, token: str) -> None:
    from determined.common.api import Session, errors

    with Session(store.master, token=token, retries=0) as session:
        try:
            session.post("/api/v1/auth/logout")
        except errors.UnauthenticatedException:
            pass  # it had expired
        except errors.RequestFailed as e:
            terminal.warn(f"the token of {username!r} is forgotten here, but the master was not told: {e}")
    store.drop(username)


def whoami(args: argparse.Namespace) -> None:
    from determined.cli.connect import connect
    from determined.experimental._user import whoami

    print(f"You are logged in as user {whoami(connect(args)).username!r}")


def list_users(args: argparse.Namespace) -> None:
    from determined.cli.connect import connect
    from determined.common.api import iterate
    from determined.experimental import User

    session = connect(args)
    users = [
        User(session, u)
        for u in iterate(session, "/api/v1/users", "users", {"active": None if args.all else True})
    ]
    rows = [
        [
            u.user_id,
            u.username,
            u.display_name,
            str(u.admin),
            str(u.active),
            str(u.remote),
            u.agent_uid,
            u.agent_gid,
            u.agent_user,
            u.agent_group,
        ]
        for u in users
    ]
    headers = [
        "User Id",
        "Username",
        "Display Name",
        "Admin",
        "Active",
        "Remote",
        "Agent Uid",
        "Agent Gid",
        "Agent User",
        "Agent Group",
    ]
    render.table(headers, rows)


def create(args: argparse.Namespace) -> None:
    from determined.cli.connect import connect
    from determined.experimental._user import create_user

    session = connect(args)
    password = None
    if not args.remote:
        password = args.password if args.password is not None else terminal.ask_new_password(args.username)
    create_user(session, args.username, admin=args.admin, password=password, remote=args.remote)
    print(f"Created user {args.username!r}")


def change_password(args: argparse.Namespace) -> None:
    from determined.cli.connect import connect
    from determined.experimental._user import get_user_by_name, whoami

    session = connect(args)
    user = get_user_by_name(session, args.target_user) if args.target_user else whoami(session)
    user.change_password(terminal.ask_new_password(user.username))
    print(f"Changed the password of user {user.username!r}")
