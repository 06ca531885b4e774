-- renew, retire: a worker process's right to hold leases.
--
-- Lock order: the session's row. The sweeper ends a session under the same lock, so that a renewal that waited for it
-- finds the session ended.

-- Open or renew a session; one that was swept stays as it is. The clock is read after the row's lock was waited for.
create function outlast.renew(
    p_session text, p_name text, p_serves text, p_ttl bigint, p_now bigint
) returns table (alive boolean, now bigint, expires_at bigint) language plpgsql volatile as $$
#variable_conflict use_column
declare
    v_found boolean;
    v_now bigint;
    v_expires bigint;
    v_lost bigint;
begin
    for v_try in 1..3 loop
        select s.expires_at, s.lost_at into v_expires, v_lost
          from outlast.sessions s
         where s.id = p_session
           for no key update;
        v_found := found;
        v_now := coalesce(p_now, outlast.clock_us());
        if v_found and v_lost is not null then
            return query select false, v_now, v_expires;
            return;
        elsif v_found then
            update outlast.sessions s
               set name = p_name, serves = p_serves, expires_at = v_now + p_ttl
             where s.id = p_session;
            return query select true, v_now, v_now + p_ttl;
            return;
        end if;
        insert into outlast.sessions (id, name, serves, started_at, expires_at)
        values (p_session, p_name, p_serves, v_now, v_now + p_ttl)
        on conflict do nothing;
        if found then
            return query select true, v_now, v_now + p_ttl;
            return;
        end if;
        -- Somebody opened the very same session in between: look again.
    end loop;
    raise exception 'session could not be renewed' using errcode = 'serialization_failure';
end
$$;

-- End a session that holds no lease, and remove the rows of its writers. A claim holds the session's row while it
-- makes leases, so that after this lock there are none that cannot be seen.
create function outlast.retire(p_session text) returns void language plpgsql volatile as $$
begin
    perform from outlast.sessions s where s.id = p_session for update;
    delete from outlast.sessions s
     where s.id = p_session and not exists (select from outlast.leases l where l.session = p_session);
    delete from outlast.writers w where w.id = p_session or (w.id >= p_session || '/' and w.id < p_session || '0');
end
$$;
