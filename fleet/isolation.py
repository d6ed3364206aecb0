"""Migration operations for the two roles: who may touch a table, and whose rows they see.

`unbroken_owner` migrates; `unbroken_app`, which serves, owns nothing and cannot lift a policy.
"""

from __future__ import annotations

from django.db import migrations

APP_ROLE = "unbroken_app"

GRANTS = """
DO $$ BEGIN
  IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'unbroken_app') THEN
    RAISE EXCEPTION 'the role unbroken_app does not exist: CREATE ROLE unbroken_app LOGIN first';
  END IF;
END $$;
GRANT USAGE ON SCHEMA public TO unbroken_app;
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO unbroken_app;
GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA public TO unbroken_app;
REVOKE INSERT, UPDATE, DELETE ON django_migrations FROM unbroken_app;
ALTER DEFAULT PRIVILEGES IN SCHEMA public
  GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO unbroken_app;
ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT USAGE, SELECT ON SEQUENCES TO unbroken_app;
"""


def grant_to_app() -> migrations.RunSQL:
    """What unbroken_app may do with the tables there are, and with those made later."""
    return migrations.RunSQL(GRANTS, migrations.RunSQL.noop)


def isolate_tenants(table: str, *, column: str = "tenant_id") -> migrations.RunSQL:
    """Forced row-level security: rows of the tenant that the transaction set (fleet.tenancy).

    The setting is read in a subquery, so once a statement and not once a row.
    """
    matches = f"(SELECT current_setting('unbroken.tenant', true)) IN ({column}::text, '*')"
    return migrations.RunSQL(
        f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY;"
        f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY;"
        f"CREATE POLICY tenant_isolation ON {table} USING ({matches}) WITH CHECK ({matches});",
        f"DROP POLICY tenant_isolation ON {table};"
        f"ALTER TABLE {table} NO FORCE ROW LEVEL SECURITY;"
        f"ALTER TABLE {table} DISABLE ROW LEVEL SECURITY;",
    )


def append_only(table: str) -> migrations.RunSQL:
    """The grants' half; the model's own trigger (pgtrigger.Protect) binds the owner too."""
    return migrations.RunSQL(
        f"REVOKE UPDATE, DELETE, TRUNCATE ON {table} FROM {APP_ROLE};",
        f"GRANT UPDATE, DELETE ON {table} TO {APP_ROLE};",
    )
