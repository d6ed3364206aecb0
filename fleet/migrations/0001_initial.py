
import django.contrib.auth.models
import django.contrib.auth.validators
import django.contrib.postgres.fields
import django.core.validators
import django.db.models.deletion
import django.utils.timezone
import fleet.models.ids
import pgtrigger.compiler
import pgtrigger.migrations
from django.db import migrations, models

from fleet.isolation import append_only, grant_to_app, isolate_tenants


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('auth', '0012_alter_user_first_name_max_length'),
    ]

    operations = [
        grant_to_app(),
        migrations.CreateModel(
            name='Cluster',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=100, unique=True, validators=[django.core.validators.RegexValidator('^[A-Za-z0-9][A-Za-z0-9._-]*\\Z', 'letters, digits, dots, dashes and underscores only')])),
                ('created_at', models.DateTimeField(auto_now_add=True)),
            ],
            options={
                'ordering': ['name'],
            },
        ),
        migrations.CreateModel(
            name='Tenant',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('public_id', models.CharField(default=fleet.models.ids.tenant_id, editable=False, max_length=40, unique=True)),
                ('name', models.CharField(max_length=100, unique=True)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
            ],
            options={
                'ordering': ['name'],
            },
        ),
        migrations.CreateModel(
            name='Node',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('public_id', models.CharField(default=fleet.models.ids.node_id, editable=False, max_length=40, unique=True)),
                ('name', models.CharField(max_length=200, validators=[django.core.validators.RegexValidator('^[A-Za-z0-9][A-Za-z0-9._-]*\\Z', 'letters, digits, dots, dashes and underscores only')])),
                ('state', models.CharField(choices=[('healthy', 'Healthy'), ('spare', 'Spare'), ('suspect', 'Suspect'), ('quarantined', 'Quarantined'), ('retired', 'Retired')], default='healthy', max_length=20)),
                ('cordoned_at', models.DateTimeField(blank=True, null=True)),
                ('cordon_reason', models.CharField(blank=True, max_length=500)),
                ('boot_id', models.CharField(blank=True, max_length=100)),
                ('agent_version', models.CharField(blank=True, max_length=50)),
                ('driver_version', models.CharField(blank=True, max_length=50)),
                ('blind', models.JSONField(blank=True, default=list)),
                ('specs', models.JSONField(blank=True, default=dict)),
                ('source_heads', models.JSONField(blank=True, default=dict)),
                ('running', models.JSONField(blank=True, default=list)),
                ('last_heartbeat_at', models.DateTimeField(blank=True, null=True)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('cluster', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='nodes', to='fleet.cluster')),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='nodes', to='fleet.tenant')),
            ],
            options={
                'ordering': ['cluster_id', 'name'],
            },
        ),
        migrations.CreateModel(
            name='Gpu',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('public_id', models.CharField(default=fleet.models.ids.gpu_id, editable=False, max_length=40, unique=True)),
                ('uuid', models.CharField(max_length=100)),
                ('serial', models.CharField(blank=True, max_length=100)),
                ('slot', models.PositiveIntegerField(blank=True, null=True)),
                ('pci_bus_id', models.CharField(blank=True, max_length=40)),
                ('model', models.CharField(blank=True, max_length=100)),
                ('brief', models.JSONField(blank=True, default=dict)),
                ('last_seen_at', models.DateTimeField()),
                ('node', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='gpus', to='fleet.node')),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='gpus', to='fleet.tenant')),
            ],
            options={
                'ordering': ['node_id', 'slot', 'uuid'],
            },
        ),
        migrations.CreateModel(
            name='Run',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('run', models.CharField(max_length=200)),
                ('contract_number', models.CharField(blank=True, max_length=100)),
                ('state', models.CharField(choices=[('registered', 'Registered'), ('running', 'Running'), ('parked', 'Parked'), ('completed', 'Completed'), ('cancelled', 'Cancelled'), ('failed', 'Failed')], default='registered', max_length=20)),
                ('state_us', models.BigIntegerField(default=0)),
                ('epoch', models.BigIntegerField(default=0)),
                ('committed_step', models.BigIntegerField(default=0)),
                ('progress_us', models.BigIntegerField(default=0)),
                ('final_step', models.BigIntegerField(blank=True, null=True)),
                ('step_seconds', models.FloatField(blank=True, null=True)),
                ('samples_per_second', models.FloatField(blank=True, null=True)),
                ('tokens_per_second', models.FloatField(blank=True, null=True)),
                ('failures', models.PositiveIntegerField(default=0)),
                ('movements', models.PositiveIntegerField(default=0)),
                ('world_size', models.PositiveIntegerField(blank=True, null=True)),
                ('spares', models.PositiveIntegerField(blank=True, null=True)),
                ('mesh', models.JSONField(blank=True, default=dict)),
                ('priority', models.IntegerField(default=0)),
                ('framework', models.CharField(blank=True, max_length=200)),
                ('gpu_model', models.CharField(blank=True, max_length=100)),
                ('is_supported', models.BooleanField(blank=True, null=True)),
                ('spec_digest', models.CharField(blank=True, max_length=128)),
                ('launch', models.JSONField(blank=True, default=dict)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('cluster', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='runs', to='fleet.cluster')),
                ('coordinator_node', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='coordinated_runs', to='fleet.node')),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='runs', to='fleet.tenant')),
            ],
            options={
                'ordering': ['-id'],
            },
        ),
        migrations.CreateModel(
            name='Order',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('public_id', models.CharField(default=fleet.models.ids.order_id, editable=False, max_length=40, unique=True)),
                ('kind', models.CharField(choices=[('start_worker', 'Start a worker'), ('stop_worker', 'Stop a worker'), ('run_check', 'Run a check'), ('reset_gpu', 'Reset a GPU'), ('reboot', 'Reboot')], max_length=20)),
                ('payload', models.JSONField(blank=True, default=dict)),
                ('state', models.CharField(choices=[('open', 'Open'), ('acknowledged', 'Acknowledged'), ('completed', 'Completed'), ('refused', 'Refused'), ('failed', 'Failed'), ('expired', 'Expired')], default='open', max_length=20)),
                ('detail', models.CharField(blank=True, max_length=1000)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('deadline_at', models.DateTimeField()),
                ('acknowledged_at', models.DateTimeField(blank=True, null=True)),
                ('completed_at', models.DateTimeField(blank=True, null=True)),
                ('node', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='orders', to='fleet.node')),
                ('run', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='orders', to='fleet.run')),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='orders', to='fleet.tenant')),
            ],
            options={
                'ordering': ['id'],
            },
        ),
        migrations.CreateModel(
            name='NodeChange',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('action', models.CharField(choices=[('enrolled', 'Enrolled'), ('cordoned', 'Cordoned'), ('uncordoned', 'Uncordoned')], max_length=20)),
                ('reason', models.CharField(blank=True, max_length=500)),
                ('actor', models.CharField(max_length=200)),
                ('at', models.DateTimeField()),
                ('node', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='changes', to='fleet.node')),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='fleet.tenant')),
            ],
            options={
                'ordering': ['node_id', 'id'],
            },
        ),
        migrations.CreateModel(
            name='Lease',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('public_id', models.CharField(default=fleet.models.ids.lease_id, editable=False, max_length=40, unique=True)),
                ('granted_at', models.DateTimeField()),
                ('expires_at', models.DateTimeField()),
                ('returned_at', models.DateTimeField(blank=True, null=True)),
                ('node', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='leases', to='fleet.node')),
                ('run', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='leases', to='fleet.run')),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='leases', to='fleet.tenant')),
            ],
            options={
                'ordering': ['-id'],
            },
        ),
        migrations.CreateModel(
            name='HealthFinding',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('finding_id', models.CharField(max_length=200)),
                ('gpu_uuid', models.CharField(blank=True, max_length=100)),
                ('state', models.CharField(choices=[('opened', 'Opened'), ('updated', 'Updated'), ('cleared', 'Cleared')], max_length=20)),
                ('check_name', models.CharField(max_length=100)),
                ('stage', models.CharField(blank=True, max_length=100)),
                ('severity', models.CharField(max_length=20)),
                ('memory', models.CharField(blank=True, max_length=20)),
                ('action', models.CharField(blank=True, max_length=20)),
                ('evidence', models.JSONField(blank=True, default=dict)),
                ('policy_version', models.CharField(blank=True, max_length=50)),
                ('opened_us', models.BigIntegerField()),
                ('changed_us', models.BigIntegerField()),
                ('gpu', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='findings', to='fleet.gpu')),
                ('node', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='findings', to='fleet.node')),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='findings', to='fleet.tenant')),
            ],
            options={
                'ordering': ['-id'],
            },
        ),
        migrations.CreateModel(
            name='EventAside',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('reason', models.CharField(choices=[('conflict', 'Conflict'), ('invalid', 'Invalid')], max_length=20)),
                ('detail', models.CharField(max_length=1000)),
                ('source', models.CharField(blank=True, max_length=500)),
                ('event_id', models.CharField(blank=True, max_length=200)),
                ('run', models.CharField(blank=True, max_length=200)),
                ('time_us', models.BigIntegerField(blank=True, null=True)),
                ('received_us', models.BigIntegerField()),
                ('sequence', models.BigIntegerField(blank=True, null=True)),
                ('body', models.BinaryField()),
                ('body_sha256', models.CharField(max_length=64)),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='fleet.tenant')),
            ],
            options={
                'verbose_name': 'event kept aside',
                'verbose_name_plural': 'events kept aside',
                'ordering': ['id'],
            },
        ),
        migrations.CreateModel(
            name='Event',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('source', models.CharField(max_length=500)),
                ('event_id', models.CharField(max_length=200)),
                ('type', models.CharField(max_length=100)),
                ('run', models.CharField(blank=True, max_length=200)),
                ('subject', models.CharField(blank=True, max_length=500)),
                ('time_us', models.BigIntegerField()),
                ('received_us', models.BigIntegerField()),
                ('sequence', models.BigIntegerField(blank=True, null=True)),
                ('boot_id', models.CharField(blank=True, max_length=100)),
                ('status', models.CharField(choices=[('accepted', 'Accepted'), ('quarantined', 'Quarantined')], max_length=20)),
                ('body', models.BinaryField()),
                ('body_sha256', models.CharField(max_length=64)),
                ('content_sha256', models.CharField(max_length=64)),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='events', to='fleet.tenant')),
            ],
            options={
                'ordering': ['id'],
            },
        ),
        migrations.AddField(
            model_name='cluster',
            name='tenant',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='clusters', to='fleet.tenant'),
        ),
        migrations.CreateModel(
            name='User',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('password', models.CharField(max_length=128, verbose_name='password')),
                ('last_login', models.DateTimeField(blank=True, null=True, verbose_name='last login')),
                ('is_superuser', models.BooleanField(default=False, help_text='Designates that this user has all permissions without explicitly assigning them.', verbose_name='superuser status')),
                ('username', models.CharField(error_messages={'unique': 'A user with that username already exists.'}, help_text='Required. 150 characters or fewer. Letters, digits and @/./+/-/_ only.', max_length=150, unique=True, validators=[django.contrib.auth.validators.UnicodeUsernameValidator()], verbose_name='username')),
                ('first_name', models.CharField(blank=True, max_length=150, verbose_name='first name')),
                ('last_name', models.CharField(blank=True, max_length=150, verbose_name='last name')),
                ('email', models.EmailField(blank=True, max_length=254, verbose_name='email address')),
                ('is_staff', models.BooleanField(default=False, help_text='Designates whether the user can log into this admin site.', verbose_name='staff status')),
                ('is_active', models.BooleanField(default=True, help_text='Designates whether this user should be treated as active. Unselect this instead of deleting accounts.', verbose_name='active')),
                ('date_joined', models.DateTimeField(default=django.utils.timezone.now, verbose_name='date joined')),
                ('groups', models.ManyToManyField(blank=True, help_text='The groups this user belongs to. A user will get all permissions granted to each of their groups.', related_name='user_set', related_query_name='user', to='auth.group', verbose_name='groups')),
                ('user_permissions', models.ManyToManyField(blank=True, help_text='Specific permissions for this user.', related_name='user_set', related_query_name='user', to='auth.permission', verbose_name='user permissions')),
                ('tenant', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='users', to='fleet.tenant')),
            ],
            options={
                'verbose_name': 'user',
                'verbose_name_plural': 'users',
                'abstract': False,
            },
            managers=[
                ('objects', django.contrib.auth.models.UserManager()),
            ],
        ),
        migrations.CreateModel(
            name='Token',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('public_id', models.CharField(default=fleet.models.ids.token_id, editable=False, max_length=40, unique=True)),
                ('label', models.CharField(max_length=200)),
                ('key', models.CharField(editable=False, max_length=16, unique=True)),
                ('pepper_id', models.PositiveSmallIntegerField(editable=False)),
                ('digest', models.CharField(editable=False, max_length=64)),
                ('scopes', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=50), size=None)),
                ('is_enabled', models.BooleanField(default=True)),
                ('expires_at', models.DateTimeField(blank=True, null=True)),
                ('is_single_use', models.BooleanField(default=False)),
                ('used_at', models.DateTimeField(blank=True, editable=False, null=True)),
                ('sources', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=500), blank=True, default=list, size=None)),
                ('last_used_at', models.DateTimeField(blank=True, editable=False, null=True)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('cluster', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='tokens', to='fleet.cluster')),
                ('node', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='tokens', to='fleet.node')),
                ('tenant', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='tokens', to='fleet.tenant')),
            ],
            options={
                'ordering': ['tenant_id', 'id'],
            },
        ),
        migrations.AddConstraint(
            model_name='run',
            constraint=models.UniqueConstraint(fields=('tenant', 'run'), name='fleet_run_name'),
        ),
        migrations.AddIndex(
            model_name='order',
            index=models.Index(condition=models.Q(('state__in', ['open', 'acknowledged'])), fields=['node', 'id'], name='fleet_order_open'),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='nodechange',
            trigger=pgtrigger.compiler.Trigger(name='append_only', sql=pgtrigger.compiler.UpsertTriggerSql(func="RAISE EXCEPTION 'pgtrigger: Cannot update or delete rows from % table', TG_TABLE_NAME;", hash='83d9fe2e626702c7d88ff17fb920ce82e9eb3d6e', operation='UPDATE OR DELETE', pgid='pgtrigger_append_only_86092', table='fleet_nodechange', when='BEFORE')),
        ),
        migrations.AddConstraint(
            model_name='node',
            constraint=models.UniqueConstraint(fields=('cluster', 'name'), name='fleet_node_place'),
        ),
        migrations.AddConstraint(
            model_name='node',
            constraint=models.CheckConstraint(condition=models.Q(('cordoned_at', None), models.Q(('cordon_reason', ''), _negated=True), _connector='OR'), name='fleet_node_cordon_has_a_reason'),
        ),
        migrations.AddConstraint(
            model_name='lease',
            constraint=models.UniqueConstraint(condition=models.Q(('returned_at', None)), fields=('node',), name='fleet_lease_one_live_per_node'),
        ),
        migrations.AddConstraint(
            model_name='lease',
            constraint=models.CheckConstraint(condition=models.Q(('expires_at__gt', models.F('granted_at'))), name='fleet_lease_ends_after_it_begins'),
        ),
        migrations.AddConstraint(
            model_name='healthfinding',
            constraint=models.UniqueConstraint(fields=('tenant', 'finding_id'), name='fleet_finding_id'),
        ),
        migrations.AddConstraint(
            model_name='gpu',
            constraint=models.UniqueConstraint(fields=('tenant', 'uuid'), name='fleet_gpu_uuid'),
        ),
        migrations.AddIndex(
            model_name='eventaside',
            index=models.Index(fields=['tenant', 'run', 'received_us'], name='fleet_eventaside_run'),
        ),
        migrations.AddConstraint(
            model_name='eventaside',
            constraint=models.UniqueConstraint(fields=('tenant', 'source', 'event_id', 'body_sha256'), name='fleet_eventaside_body'),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='eventaside',
            trigger=pgtrigger.compiler.Trigger(name='append_only', sql=pgtrigger.compiler.UpsertTriggerSql(func="RAISE EXCEPTION 'pgtrigger: Cannot update or delete rows from % table', TG_TABLE_NAME;", hash='109f5c664ecbd6059ac5ef66efd2b58bfe7fc0d3', operation='UPDATE OR DELETE', pgid='pgtrigger_append_only_f7f35', table='fleet_eventaside', when='BEFORE')),
        ),
        migrations.AddIndex(
            model_name='event',
            index=models.Index(fields=['tenant', 'run', 'received_us'], name='fleet_event_run'),
        ),
        migrations.AddIndex(
            model_name='event',
            index=models.Index(fields=['tenant', 'source', 'sequence'], name='fleet_event_sequence'),
        ),
        migrations.AddIndex(
            model_name='event',
            index=models.Index(fields=['received_us'], name='fleet_event_received'),
        ),
        migrations.AddConstraint(
            model_name='event',
            constraint=models.UniqueConstraint(fields=('tenant', 'source', 'event_id'), name='fleet_event_identity'),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='event',
            trigger=pgtrigger.compiler.Trigger(name='append_only', sql=pgtrigger.compiler.UpsertTriggerSql(func="RAISE EXCEPTION 'pgtrigger: Cannot update or delete rows from % table', TG_TABLE_NAME;", hash='bdcbb9dfdaf7efa090d61eff7cfb5028c552d4ea', operation='UPDATE OR DELETE', pgid='pgtrigger_append_only_5ff8e', table='fleet_event', when='BEFORE')),
        ),
        migrations.AddConstraint(
            model_name='token',
            constraint=models.CheckConstraint(condition=models.Q(('node', None), ('cluster__isnull', False), _connector='OR'), name='fleet_token_node_has_its_cluster'),
        ),
        migrations.AddConstraint(
            model_name='token',
            constraint=models.CheckConstraint(condition=models.Q(('cluster', None), ('tenant__isnull', False), _connector='OR'), name='fleet_token_cluster_has_its_tenant'),
        ),
        migrations.AddConstraint(
            model_name='token',
            constraint=models.CheckConstraint(condition=models.Q(('used_at', None), ('is_single_use', True), _connector='OR'), name='fleet_token_only_single_use_is_spent'),
        ),
        isolate_tenants('fleet_tenant', column='id'),
        isolate_tenants('fleet_cluster'),
        isolate_tenants('fleet_node'),
        isolate_tenants('fleet_gpu'),
        isolate_tenants('fleet_nodechange'),
        isolate_tenants('fleet_token'),
        isolate_tenants('fleet_run'),
        isolate_tenants('fleet_order'),
        isolate_tenants('fleet_lease'),
        isolate_tenants('fleet_event'),
        isolate_tenants('fleet_eventaside'),
        isolate_tenants('fleet_healthfinding'),
        append_only('fleet_nodechange'),
        append_only('fleet_event'),
        append_only('fleet_eventaside'),
    ]
